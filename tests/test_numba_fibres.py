"""numba_cuda's kernels for GPUs, where there is none: warp shuffles, vectors, cp.async and mma, in fibres."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest
import torch
from support import ON_GPU, Candidate, Tally, Truth, anew, by_dtype, guarded_copy, kinds_in_turns, right_candidates, truth, truth_of

from opwise.backends import staged_rows
from opwise.backends.numba_on_cpu import MACHINE
from opwise.backends.numba_on_cpu.fibres import Fault, Machine, Memory
from opwise.ops import OPS, Workload

pytestmark = pytest.mark.skipif(ON_GPU, reason="a GPU is here: it runs these kernels itself")
MAIN = [c for c in right_candidates() if c.backend == "numba_cuda" and not c.variant]
# A shape for each kernel and each edge of it: one element, whole vectors and rests, several blocks, rows in a warp, in a block, in none;
# of 40000 columns, which are read twice in float32, 16-bit rows are kept as they were read, the end of them in shared memory.
SHAPES = {
    "mean": ((1,), (33,), (4099,), (16_387,), (MACHINE.sms * 3 * 16_384 + 8203,)),  # the last: more than 16-bit blocks read in one round
    "softmax": ((1, 1), (5, 33), (3, 256), (2, 1025), (1, 4096), (1, 8191), (1, 25_001), (1, 40_000)),
    "matmul": ((1, 1, 1), (17, 33, 19), (33, 31, 32), (17, 200, 24), (70, 40, 136), (129, 8, 260)),
}
ELEMENTWISE = ((1,), (33,), (511,), (1025,), (2052,))
LARGE = 100_000  # flops: seconds, so with one kind of inputs
UNALIGNED = {"softmax": (2, 264), "matmul": (17, 32, 24)}


@pytest.mark.parametrize(("candidate", "dtype"), by_dtype(MAIN), ids=str)
def test_right_in_fibres(candidate: Candidate, dtype: str) -> None:
    tally = Tally(candidate)
    for place, shape in enumerate(SHAPES.get(candidate.op, ELEMENTWISE)):
        workload = Workload(candidate.op, shape, dtype)
        for kind in kinds_in_turns(dtype, place) if OPS[candidate.op].cost(workload).flops < LARGE else ("hard",):
            tally.check(workload, truth(workload, kind, 51), note=kind)
    workload = Workload(candidate.op, UNALIGNED.get(candidate.op, (515,)), dtype)
    known = truth(workload, "normal", 52)
    for offsets in ((0, 1), (1, 0), (1, 1)):
        moved = tuple(guarded_copy(x, (offsets[0] + at) % 4) for at, x in enumerate(known.inputs))
        tally.check(workload, Truth(moved, known.reference, known.bound), offset=offsets[1], note=f"offsets {offsets}")
    if candidate.op == "softmax":
        x = torch.full((1, 40_000), -math.inf, dtype=workload.torch_dtype)
        x[:, 39_990:] = 1.0
        tally.check(Workload("softmax", (1, 40_000), dtype), truth_of(workload, guarded_copy(x)), note="few finite elements")
    tally.close()


SHORT = ((300, 5), (40, 31), (21, 61), (20, 127))  # of each form, more rows than a block's or a warp's, and a last one of few


@pytest.mark.parametrize(("candidate", "dtype"), by_dtype([c for c in MAIN if c.op == "softmax"]), ids=str)
def test_short_rows_in_fibres(candidate: Candidate, dtype: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged_rows, "FROM", 0)
        patch.setattr(staged_rows, "BYTES", 1024)
        patch.setattr(importlib.import_module("opwise.backends.numba_cuda.softmax.plan"), "LONGEST_SHORT", staged_rows.LONGEST)
        tally = anew(candidate)
        for place, shape in enumerate(SHORT):
            workload = Workload("softmax", shape, dtype)
            for kind in kinds_in_turns(dtype, place):
                tally.check(workload, truth(workload, kind, 53), note=kind)
        tally.close()


def test_fibres_raise_where_a_gpu_would_hang_or_fault() -> None:
    room = torch.zeros(8)
    begin = room.data_ptr()

    def run(kernel: object, threads: int = 32) -> None:
        machine = Machine((1, 1), threads, 0, Memory([room]))
        machine.run(lambda: kernel(machine), ())  # type: ignore[operator]

    with pytest.raises(Fault, match="4 bytes at 32 of a tensor"):
        run(lambda cuda: cuda.memory.at(begin + 32, 4))
    with pytest.raises(Fault, match="misaligned: 16 bytes"):
        run(lambda cuda: cuda.memory.at(begin + 4, 16))
    with pytest.raises(Fault, match="wait for ever"):
        run(lambda cuda: cuda.syncthreads() if cuda.threadIdx.x else cuda.shfl_xor_sync(0xFFFFFFFF, 1.0, 1))
    with pytest.raises(Fault, match="wait for ever"):
        run(lambda cuda: cuda.shfl_xor_sync(0xFFFFFFFF, 1.0, 1) if cuda.threadIdx.x < 31 else None)


def test_shuffles_and_barriers_do_what_cuda_says() -> None:
    seen = np.zeros(64)

    def kernel(cuda: Machine) -> None:
        thread = cuda.threadIdx.x
        shared = cuda.shared.array(64, "float32")
        shared[thread] = cuda.shfl_xor_sync(0xFFFFFFFF, thread, 5)
        cuda.syncthreads()
        seen[thread] = shared[63 - thread]

    machine = Machine((1, 1), 64, 0, Memory([]))
    machine.run(lambda: kernel(machine), ())
    assert seen.tolist() == [(63 - thread) ^ 5 for thread in range(64)]
