"""Who does which job next: the longest first, one roof on one GPU, and the last jobs divided so that all finish together."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence

import pytest

from opwise.backends import BACKENDS
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.runner import Job
from opwise.scaling.order import Dispatcher, division, estimate_s, roof


@pytest.mark.parametrize("count", [2, 4, 8])
def test_the_core_set_keeps_every_gpu_busy_to_the_end(count: int) -> None:
    """Played on a clock of its own, jobs taking up to a quarter more or less than was expected: the last to end waits for no more than
    a job, and all end within 5 % of what perfect division would take."""
    chance = random.Random(count)
    jobs = [Job(w, tuple(f"{b}/{w.op}" for b in BACKENDS), "cuda:0") for op in OPS.values() for w in op.workloads["core"]]
    seconds = {each.workload: estimate_s(each) * chance.uniform(0.75, 1.25) for each in jobs}
    now = 0.0
    order = Dispatcher(jobs, clock=lambda: now)
    free, ends = [(0.0, f"GPU {i}") for i in range(count)], []
    while free:
        now, place = heapq.heappop(free)
        if (taken := order.take(place, wait=False)) is None:
            ends.append(now)
        else:
            heapq.heappush(free, (now + seconds[taken.workload], place))
    assert not order.waiting
    assert max(ends) < 1.05 * sum(seconds.values()) / count
    assert max(ends) - min(ends) < sorted(seconds.values())[-count], "the longest are not the last"


def test_the_last_jobs_are_divided_so_that_all_finish_together() -> None:
    """Against every division that there is, of jobs that differ by a half, for places that are busy for up to a job's time more."""
    chance, behind, one_by_one = random.Random(3), 0.0, 0.0
    for _ in range(20):
        free, seconds = [chance.uniform(0, 3) for _ in range(3)], sorted((chance.uniform(2, 3) for _ in range(6)), reverse=True)

        def end(takers: Sequence[int], free: list[float] = free, seconds: list[float] = seconds) -> float:
            return max(f + sum(s for s, taker in zip(seconds, takers, strict=True) if taker == i) for i, f in enumerate(free))

        best = min(map(end, itertools.product(range(3), repeat=6)))
        behind += end(division(free, seconds)) - best
        for each in seconds:
            free[free.index(min(free))] += each
        one_by_one += max(free) - best
    assert behind < 0.25 * one_by_one


def test_the_longest_come_first_and_one_roof_stays_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opwise.scaling.order.LAST", 0)  # these few would all be among them
    big, small = (Job(Workload(op, (n,), "float32"), (f"torch_eager/{op}",), "cuda:0") for op, n in (("square", 1 << 28), ("square", 8)))
    twin = Job(Workload("gelu", (1 << 28,), "float32"), ("torch_eager/gelu",), "cuda:0")
    product = Job(Workload("matmul", (4096, 4096, 4096), "float16"), ("torch_eager/matmul",), "cuda:0")
    assert roof(big) == roof(twin) != roof(small)
    thin = Job(Workload("matmul", (16, 4096, 4096), "float16"), ("torch_eager/matmul",), "cuda:0")
    assert roof(product) == roof(thin) == "tensor_float16", "whose peak is measured for both"
    assert roof(Job(Workload("matmul", (32, 32, 32), "float16"), ("torch_eager/matmul",), "cuda:0")) == 6144, "and for this one is not"
    assert estimate_s(big) > estimate_s(small)
    order = Dispatcher([small, big, product, twin])
    first = order.take("GPU 0")
    assert first in (big, twin)
    assert order.take("GPU 1") == product, "the next bundle"
    assert order.take("GPU 0") == (twin if first == big else big), "the same roof"
    assert order.take("GPU 1") == small
    for done in (big, product, twin):
        assert order.done(done)
    assert not order.done(big), "a second time is a duplicate"
    assert order.take("GPU 0", wait=False) is None
    assert order.lost(small)
    assert order.take("GPU 0") == small, "what was lost comes again"
    assert order.done(small)
    assert order.finished
    assert not order.lost(small), "what another has done meanwhile is not run again"
    assert order.take("GPU 0") is None
