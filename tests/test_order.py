"""Who does which job next: the longest first, one roof on one GPU, and the last jobs divided so that all finish together."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Hashable, Sequence

import pytest

from opwise.backends import BACKENDS
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.runner import Job
from opwise.scaling.order import Dispatcher, bundle, division, estimate_s, roofs


@pytest.mark.parametrize(("count", "within", "twice_s"), [(2, 1.01, 2.0), (4, 1.03, 4.0), (8, 1.12, 14.0)])
def test_the_core_set_keeps_every_gpu_busy_to_the_end(count: int, within: float, twice_s: float) -> None:
    """Played on a clock of its own, jobs taking up to a fifth more or less than was expected: the last to end waits for no more than a
    job, all end not much later than by perfect division of a run on one GPU, and few roofs are measured by two."""
    chance = random.Random(count)
    jobs = [Job(w, tuple(f"{b}/{w.op}" for b in BACKENDS), "cuda:0") for op in OPS.values() for w in op.workloads["core"]]
    seconds = {each.workload: estimate_s(each) * chance.uniform(0.8, 1.2) for each in jobs}
    once_s = sum({name: took for each in jobs for name, took in roofs(each).items()}.values())
    now, measured_s = 0.0, 0.0
    order = Dispatcher(jobs, clock=lambda: now)
    known: dict[str, set[Hashable]] = {f"GPU {i}": set() for i in range(count)}
    free, ends = [(0.0, place) for place in known], []
    while free:
        now, place = heapq.heappop(free)
        if (taken := order.take(place, wait=False)) is None:
            ends.append(now)
            continue
        new_s = sum(took for name, took in roofs(taken).items() if name not in known[place])
        known[place] |= roofs(taken).keys()
        measured_s += new_s
        heapq.heappush(free, (now + seconds[taken.workload] + new_s, place))
    assert not order.waiting
    assert max(ends) < within * (sum(seconds.values()) + once_s) / count
    assert max(ends) - min(ends) < sorted(seconds.values())[-count], "the longest are not the last"
    assert measured_s - once_s < twice_s


def test_the_last_jobs_are_divided_so_that_all_finish_together() -> None:
    """Against every division that there is, of jobs that differ by a half and ask for one roof of three, for places that are busy for up
    to a job's time more and have measured one roof each."""
    chance, behind, one_by_one = random.Random(3), 0.0, 0.0
    for _ in range(20):
        free, seconds = [chance.uniform(0, 3) for _ in range(3)], sorted((chance.uniform(2, 3) for _ in range(6)), reverse=True)
        asked = [{chance.randrange(3): 1.0} for _ in seconds]

        def ends(
            takers: Sequence[int], free: list[float] = free, seconds: list[float] = seconds, asked: list[dict[int, float]] = asked
        ) -> list[float]:
            shares = [[job for job, taker in enumerate(takers) if taker == place] for place in range(3)]
            return [f + sum(seconds[job] for job in share) + len({roof for job in share for roof in asked[job]} - {place})
                    for place, (f, share) in enumerate(zip(free, shares, strict=True))]  # fmt: skip

        best = min(max(ends(takers)) for takers in itertools.product(range(3), repeat=6))
        behind += max(ends(division(free, seconds, asked, [{0}, {1}, {2}]))) - best
        taken: list[int] = []
        for _ in seconds:
            now = ends(taken)
            taken.append(now.index(min(now)))
        one_by_one += max(ends(taken)) - best
    assert behind < 0.25 * one_by_one


def test_the_longest_come_first_and_one_roof_stays_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opwise.scaling.order.LAST", 0)  # these few would all be among them
    big, small = (Job(Workload(op, (n,), "float32"), (f"torch_eager/{op}",), "cuda:0") for op, n in (("square", 1 << 28), ("square", 8)))
    twin = Job(Workload("gelu", (1 << 28,), "float32"), ("torch_eager/gelu",), "cuda:0")
    product = Job(Workload("matmul", (4096, 4096, 4096), "float16"), ("torch_eager/matmul",), "cuda:0")
    assert bundle(big) == bundle(twin) != bundle(small)
    thin = Job(Workload("matmul", (16, 4096, 4096), "float16"), ("torch_eager/matmul",), "cuda:0")
    other = Job(Workload("matmul", (16, 4096, 4096), "bfloat16"), ("torch_eager/matmul",), "cuda:0")
    assert bundle(product) == bundle(thin) == bundle(other)
    assert roofs(product).keys() & roofs(thin) == {"tensor_float16"}, "whose peak is measured for both"
    assert len(roofs(thin).keys() & roofs(other)) == 1, "the same bytes"
    tiny = Job(Workload("matmul", (32, 32, 32), "float16"), ("torch_eager/matmul",), "cuda:0")
    assert bundle(tiny) == 6144, "and no peak is measured for this one"
    assert list(roofs(tiny)) == [6144]
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
