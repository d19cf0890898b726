"""How a mean's steps are shared among blocks in order of memory; and long blocks, which only a large x has, here of a small one."""

from __future__ import annotations

import pytest
from support import ON_GPU, Candidate, Truth, anew, by_dtype, guarded_copy, in_stand_in, right_candidates, truth

from opwise.backends.cuda_src import plan
from opwise.ops import Workload

MEAN = [c for c in right_candidates() if (c.op, c.variant) == ("mean", "")]
CUDA = [c for c in MEAN if c.backend in ("cupy_raw", "torch_inline")]
NUMBA = [c for c in MEAN if c.backend == "numba_cuda"]
TRITON = [c for c in MEAN if c.backend == "triton_jit"]

Longer = tuple[tuple[int, int], ...]
TRITONS: Longer = ((4, 2), (8, 4), (16, 8))


@pytest.mark.parametrize("longer", [plan.MEAN_LONGER, TRITONS])
@pytest.mark.parametrize("wave", [1, 6, 396, 564])
@pytest.mark.parametrize("steps", [1, 2, 128, 2048, 8192, 32768, 32769, 1 << 20])
def test_every_step_is_one_blocks(steps: int, wave: int, longer: Longer) -> None:
    found = plan.mean_steps(steps, wave, longer)
    each, large, blocks = found
    first = [b * each if b < large else b + large * (each - 1) for b in range(blocks)]
    counts = [each if b < large else 1 for b in range(blocks)]
    assert first[0] == 0
    assert first[-1] + counts[-1] == steps
    assert all(a + c == b for a, c, b in zip(first, counts, first[1:], strict=False))
    assert 4 * blocks <= found.scratch_bytes <= 64 << 10


def test_as_measured_on_an_h200() -> None:
    def each(mib: int, blocks: int, longer: Longer) -> int:
        return plan.mean_steps(32 * mib, blocks * 132, longer).each

    assert [each(mib, 3, plan.MEAN_LONGER) for mib in (4, 16, 64, 128, 256, 1024)] == [1, 1, 1, 4, 4, 8]
    assert [each(mib, 4, TRITONS) for mib in (4, 16, 64, 128, 256, 1024)] == [1, 1, 1, 2, 4, 8]


@pytest.mark.skipif(ON_GPU, reason="a GPU has multiprocessors of its own")
@pytest.mark.parametrize(("candidate", "dtype"), by_dtype(CUDA), ids=str)
def test_long_blocks(candidate: Candidate, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MEAN_BLOCKS_PER_SM", 1)
    monkeypatch.setattr("opwise.backends.cuda_on_cpu.PROCESSORS", 2)
    tally = anew(candidate)
    step = plan.MEAN_THREADS * plan.MEAN_PIECES * plan.VECTOR_BYTES // plan.ITEM_BYTES[dtype]
    for n, each in ((5 * step - 5, 1), (37 * step + 7, 4), (131 * step, 8)):
        assert plan.mean(n, dtype, 2).shares[0] & 0xFFFFFFFF == each
        workload = Workload("mean", (n,), dtype)
        known = truth(workload, "hard", 53)
        tally.check(workload, known)
        moved = Truth(tuple(guarded_copy(x, 1) for x in known.inputs), known.reference, known.bound)
        tally.check(workload, moved, offset=1, note="unaligned")
    tally.close()


@in_stand_in
@pytest.mark.parametrize(("candidate", "dtype"), by_dtype(NUMBA), ids=str)
def test_long_blocks_in_fibres(candidate: Candidate, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tally = anew(candidate)
    from opwise.backends.numba_cuda import mean

    shape = mean.Shape(64, 2, 1)
    monkeypatch.setattr(mean, "SHAPE", shape)
    step = shape.threads * shape.loads * plan.VECTOR_BYTES // plan.ITEM_BYTES[dtype]
    for steps in (1, 5, 37, 131):  # on two multiprocessors, 1 to 8 a block
        workload = Workload("mean", (steps * step + 77,), dtype)
        tally.check(workload, truth(workload, "hard", 53))
    tally.close()


@pytest.mark.parametrize(("candidate", "dtype"), by_dtype(TRITON), ids=str)
def test_long_programs(candidate: Candidate, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tally = anew(candidate)
    from opwise.backends.triton_jit import mean

    share, size = mean.Share(32, 2, 3), plan.ITEM_BYTES[dtype]
    monkeypatch.setattr(mean, "processors", lambda device: 2)
    monkeypatch.setattr(mean, "tuned", lambda x: share)
    turn = 6 * share.block(size) * share.loads
    assert mean.LONGER == TRITONS
    for n, each in ((3 * turn + 7, 1), (4 * turn, 2), (9 * turn + turn // 2 + 3, 4), (16 * turn + 83, 8)):
        assert share.steps(n, size, 2).each == each
        workload = Workload("mean", (n,), dtype)
        tally.check(workload, truth(workload, "hard", 53))
    tally.close()
