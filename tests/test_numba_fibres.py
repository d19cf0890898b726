"""numba_cuda's kernels for GPUs, where there is none: warp shuffles, vectors, cp.async and mma, in fibres."""

from __future__ import annotations

import importlib
import math
import pkgutil

import numpy as np
import pytest
import torch
from numba_parts_fibres import meanings as of_parts
from numba_product_fibres import instructions as clusters
from numba_stream_fibres import instructions as stream
from support import Candidate, Tally, Truth, anew, by_dtype, guarded_copy, in_stand_in, kinds_in_turns, right_candidates, truth, truth_of

from opwise.backends import staged_rows
from opwise.backends.numba_on_cpu import MACHINE
from opwise.backends.numba_on_cpu.fibres import Fault, Machine, Memory
from opwise.backends.numba_on_cpu.meanings import SM80, machine
from opwise.ops import OPS, Workload

pytestmark = in_stand_in
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
        block = Machine((1, 1), threads, 0, Memory([room]))
        block.run(lambda: kernel(block), ())  # type: ignore[operator]

    with pytest.raises(Fault, match="4 bytes at 32 of a tensor"):
        run(lambda cuda: cuda.memory.at(begin + 32, 4))
    with pytest.raises(Fault, match="misaligned: 16 bytes"):
        run(lambda cuda: cuda.memory.at(begin + 4, 16))
    with pytest.raises(Fault, match="wait for ever"):
        run(lambda cuda: cuda.syncthreads() if cuda.threadIdx.x else cuda.shfl_xor_sync(0xFFFFFFFF, 1.0, 1))
    with pytest.raises(Fault, match="wait for ever"):
        run(lambda cuda: cuda.shfl_xor_sync(0xFFFFFFFF, 1.0, 1) if cuda.threadIdx.x < 31 else None)


def test_one_element_may_have_any_stride() -> None:
    x = torch.tensor([[3.0, 4.0]])[:, :1]
    assert (x.is_contiguous(), x.stride()) == (True, (2, 1))
    wide = torch.tensor([[3.0, 4.0]]).t()[:1]
    for tensor in (x, wide, x.as_strided((1, 1), (1, 2))):
        assert Memory((tensor,)).at(tensor.data_ptr(), 4).view(np.float32).tolist() == [3.0]


def test_shuffles_and_barriers_do_what_cuda_says() -> None:
    seen = np.zeros(64)

    def kernel(cuda: Machine) -> None:
        thread = cuda.threadIdx.x
        shared = cuda.shared.array(64, "float32")
        shared[thread] = cuda.shfl_xor_sync(0xFFFFFFFF, thread, 5)
        cuda.syncthreads()
        seen[thread] = shared[63 - thread]

    block = Machine((1, 1), 64, 0, Memory([]))
    block.run(lambda: kernel(block), ())
    assert seen.tolist() == [(63 - thread) ^ 5 for thread in range(64)]


PLAYED_OTHERWISE = {"passed"}  # by barrier.wait, which asks it
NEVER_PLAYED = {"arrive_there", "clock", "cluster_fence", "nap", "send_pair_to_block", "store_pair_in_block"}  # softmax's clusters


def test_every_intrinsic_has_a_meaning() -> None:
    """Those that have names; of the others, which functions make, a kernel that has one without a meaning says so."""
    MAIN[0].get()
    backend, found = importlib.import_module("opwise.backends.numba_cuda"), set()
    kind = type(importlib.import_module("opwise.backends.numba_cuda.common.ptx").exp2)
    played = {name for table in (SM80, clusters(), stream(), of_parts()) for names in table.values() for name in names}
    for info in pkgutil.walk_packages(backend.__path__, f"{backend.__name__}."):
        if not info.name.endswith("common.mlir"):  # which is the successor's
            held = vars(importlib.import_module(info.name)).items()
            found |= {name for name, x in held if any(isinstance(one, kind) for one in (x.values() if isinstance(x, dict) else [x]))}
    assert len(found) > 60
    assert found - played == PLAYED_OTHERWISE | NEVER_PLAYED


def test_plain_launches_over_numpys_arrays_run_here_whatever_they_ask_of_cuda() -> None:
    MAIN[0].get()
    cuda, types = (getattr(importlib.import_module("opwise.backends.numba_cuda.common.compiler"), name) for name in ("cuda", "types"))
    float32, int64 = types.float32, types.int64

    @cuda.jit(device=True)
    def doubled(x):  # type: ignore[no-untyped-def]
        return x + x

    @cuda.jit
    def kernel(out, counted, factor):  # type: ignore[no-untyped-def]
        a, b = cuda.shared.array((8, 4), float32), cuda.shared.array((8, 4), float32)
        x, y = cuda.grid(2)
        i, j = cuda.threadIdx.x, cuda.threadIdx.y
        a[i, j], b[i, j] = x, y
        cuda.syncthreads()
        out[x, y] = doubled(a[7 - i, j]) * factor + math.sqrt(b[i, 3 - j])
        cuda.atomic.add(counted, 0, cuda.shfl_down_sync(0xFFFFFFFF, int64(1), 1))

    out, counted = np.zeros((16, 8), np.float32), torch.zeros(2, dtype=torch.int64)
    kernel[(2, 2), (8, 4)](out, counted, 10)
    x, y = np.meshgrid(np.arange(16), np.arange(8), indexing="ij")
    expected = 20 * (x // 8 * 8 + 7 - x % 8) + np.sqrt((y // 4 * 4 + 3 - y % 4).astype(np.float32))
    assert np.array_equal(out, expected.astype(np.float32))
    assert counted.tolist() == [128, 0]

    @cuda.jit
    def asks_more(out):  # type: ignore[no-untyped-def]
        cuda.cg.this_grid().sync()

    with pytest.raises(Fault, match=r"fibres have no cuda\.cg"):
        asks_more[1, 32](out)


def test_scratch_that_is_left_in_disorder_shows() -> None:
    MAIN[0].get()
    launch = importlib.import_module("opwise.backends.numba_cuda.common.launch")

    def kernel(x, scratch):  # type: ignore[no-untyped-def]
        machine().memory.at(scratch, 4)[:] = 1

    x = torch.zeros(4)
    bind = launch.Kernel(kernel, (), 32).fixed((1, 1), device=x.device, scratch_bytes=16, zeroed=16)
    with pytest.raises(RuntimeError, match="other numbers in scratch than 0"):
        bind(x)()
