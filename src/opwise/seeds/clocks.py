"""Timing methods: the published ones, and opwise's, for implementations of an op (`race`) and for any launch (`timed`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opwise.backends import implementation
from opwise.backends.protocol import Launch
from opwise.measure.stats import median
from opwise.measure.timing import MOST_COLD_S, Timing, paired_ratio, tied
from opwise.measure.validate import Verdict, judge
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.seeds.place import Place

WARM_UPS = 5  # of the GPU MODE notes


def event_us(place: Place, run: Callable[[], object], warm_ups: int = WARM_UPS) -> float:
    """GPU MODE, lecture 1: warm-ups, then one run between two events, us. One sample; the L2 as the last run left it; it includes the CPU's
    enqueueing if the GPU is faster."""
    for _ in range(warm_ups):
        run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    place.wait()
    start.record()
    run()
    end.record()
    place.wait()
    return float(start.elapsed_time(end)) * 1e3


def events_us(place: Place, run: Callable[[], object], runs: int, warm_ups: int = WARM_UPS) -> list[float]:
    """That many samples of event_us."""
    event_us(place, run, warm_ups)
    return [event_us(place, run, warm_ups=0) for _ in range(runs)]


def benchmark(run: Callable[[], object], warmups: int = 1, trials: int = 3, wait: Callable[[], object] = lambda: None) -> list[float]:
    """CS336, lecture 6: seconds of each trial by the wall clock, with `wait` (a synchronize, on a GPU) before and after it."""
    for _ in range(warmups):
        run()
    wait()
    seconds = []
    for _ in range(trials):
        began = time.perf_counter()
        run()
        wait()
        seconds.append(time.perf_counter() - began)
    return seconds


@dataclass
class Race:
    """Cold timings of one workload's implementations, taken in turns. A name is in `timings`, or in `absent` with the reason."""

    timings: dict[str, Timing] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def us(self, name: str) -> float:
        """Raises RuntimeError with the reason if it was not timed."""
        if name not in self.timings:
            raise RuntimeError(f"{name} was not timed: {self.absent.get(name, 'it was not asked for')}")
        return self.timings[name].median_us

    def over(self, a: str, b: str) -> float:
        """The paired ratio of a's time over b's."""
        self.us(a), self.us(b)
        return paired_ratio(self.timings[a], self.timings[b])[0]

    def alike(self, names: Sequence[str], within: float = 0.0) -> bool:
        """Returns whether all tie with the first, or are within that share of it."""
        ratios = [paired_ratio(self.timings[name], self.timings[names[0]]) for name in names[1:]]
        return all(tied(*ratio) or abs(ratio[0] - 1) <= within for ratio in ratios)


def race(place: Place, workload: Workload, names: Sequence[str], budget_s: float = MOST_COLD_S) -> Race:
    """Times implementations by name (`torch_eager/square:mul`), checked against the float64 reference before and after."""
    spec, found = OPS[workload.op], Race()
    with workload.precision(), torch.no_grad():
        sets = [spec.make_inputs(workload, place.device, seed) for seed in range(place.clock.rotation(spec.cost(workload).bytes))]
        outputs: dict[str, Tensor] = {}
        launches: dict[str, list[Launch]] = {}
        check = _checker(workload, sets[0])
        for name in names:
            try:
                ready = implementation(name, place.device)
                buffers = [spec.empty_output(*inputs) for inputs in sets]
                bound = [ready.prepare(*inputs, out=out) for inputs, out in zip(sets, buffers, strict=True)]
                bound[0]()
                place.wait()
            except Exception as error:  # costs this implementation its place; a fault of the GPU itself comes up at the next wait
                found.absent[name] = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"
                place.wait()
                continue
            launches[name], outputs[name] = bound, buffers[0]
        _keep_right(found, check, outputs, launches)
        found.timings = place.clock.cold(launches, budget_s=budget_s)
        found.absent |= {name: place.clock.refusals.pop(name) for name in launches if name in place.clock.refusals}
        _keep_right(found, check, outputs, found.timings)
    return found


def _checker(workload: Workload, inputs: Sequence[Tensor]) -> Callable[[Tensor], Verdict]:
    spec, exact = OPS[workload.op], [x.double() for x in inputs]
    reference = spec.reference(*exact)
    bound = spec.error_bound(workload, reference, *exact)
    return lambda out: judge(out, reference, bound)


def _keep_right(found: Race, check: Callable[[Tensor], Verdict], outputs: dict[str, Tensor], kept: dict[str, Any]) -> None:
    """No time without a verdict: what is wrong leaves, with the first wrong element as its reason."""
    for name in list(kept):
        verdict = check(outputs[name])
        if not verdict.ok:
            found.absent[name] = f"wrong: {verdict.reason}"
            del kept[name]


def timed(place: Place, launches: Mapping[str, Callable[[int], Launch]], nbytes: int, budget_s: float = MOST_COLD_S) -> dict[str, Timing]:
    """Cold times of launches that are not implementations of an op; the caller checks their results. Each is given as a function that makes
    the launch on the i-th set of buffers, of `nbytes` in and out. Raises RuntimeError if one cannot be timed."""
    sets = place.clock.rotation(nbytes)
    found = place.clock.cold({name: [make(i) for i in range(sets)] for name, make in launches.items()}, budget_s=budget_s)
    for name in launches:
        if name not in found:
            raise RuntimeError(f"{name} was not timed: {place.clock.refusals.pop(name, 'no reason given')}")
    return found


def told_us(us: float) -> str:
    """ "189.7 us", "3.27 ms"."""
    return f"{us / 1e3:.4g} ms" if us >= 1e3 else f"{us:.4g} us"


def spread(samples: Sequence[float]) -> float:
    """(largest - least) / median."""
    return (max(samples) - min(samples)) / median(list(samples))
