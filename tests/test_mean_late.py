"""Triton's mean with rows of late programs, which only a large x has: here of a small one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import Candidate, Tally, by_dtype, right_candidates, truth

from opwise.backends.cuda_src.plan import ITEM_BYTES
from opwise.backends.protocol import Implementation
from opwise.ops import Workload

MEAN = [c for c in right_candidates() if (c.backend, c.op, c.variant) == ("triton_jit", "mean", "")]


@pytest.mark.parametrize(("candidate", "dtype"), by_dtype(MEAN), ids=str)
def test_late_programs(candidate: Candidate, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = candidate.get()
    from opwise.backends.triton_jit import mean

    share, programs = mean.Share(32, 2, 3), 6
    turn = programs * share.block(ITEM_BYTES[dtype]) * share.loads
    monkeypatch.setattr(mean, "TURNS_PER_ROW", 3)
    monkeypatch.setattr(mean, "processors", lambda device: 2)
    monkeypatch.setattr(mean, "tuned", lambda x: share)
    fresh = Implementation(found.backend, found.op, found.variant, found.source, found.device_type)  # what was built before serves no more
    tally = Tally(replace(candidate, found=fresh))
    for n, rows in ((2 * turn + 7, 1), (3 * turn, 2), (7 * turn + turn // 2 + 3, 3), (60 * turn + 83, 1 + mean.MOST_ROWS)):
        assert share.rows(n, ITEM_BYTES[dtype], programs) == rows
        workload = Workload("mean", (n,), dtype)
        tally.check(workload, truth(workload, "hard", 53))
    tally.close()


def test_late_programs_leave_the_first_ones_a_turn_and_partials_are_few() -> None:
    from opwise.backends.triton_jit.mean import LATE_TURNS, SHIPPED

    for processors in (1, 132, 188):
        for mib in (4, 64, 256, 1024, 16384):
            n = mib << 18
            programs = SHIPPED.programs(n, 4, processors)
            rows, turns = SHIPPED.rows(n, 4, programs), n // (SHIPPED.block(4) * SHIPPED.loads * programs)
            assert rows == 1 or LATE_TURNS * (rows - 1) < turns
            assert rows * programs <= 9 * 188 * 4
