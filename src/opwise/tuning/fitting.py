"""Fits a GPU's numbers to measured times of products, so that the model chooses well and, with less weight, predicts well."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from opwise.backends.gemm.cost import Work, predicted_us
from opwise.backends.gemm.gpu import Gpu

READ = ("sms", "clock_mhz")
FITTED = tuple(f.name for f in fields(Gpu) if f.name not in READ)
# Weights of a product's errors among one another, by which it is chosen; of all errors; and of how far numbers moved: those that the times
# do not determine stay about where they were, without which the choices at other products became worse. By trials with an H100's times.
AMONG, ERROR, MOVED = 0.2, 0.03, 0.01
TRIALS = 4000
STEP, LEAST_STEP, MOST_STEP, WIDER, NARROWER = 0.2, 0.02, 0.4, 1.3, 0.93  # of a number's logarithm
SEED = 20201113


class Sample(NamedTuple):
    """A configuration's time at a product, us at full clock, and its work there."""

    product: str
    name: str
    work: Work
    us: float


class Loss(NamedTuple):
    """chosen: time of the configuration that is predicted to be fastest over the fastest's, geometric mean over products less 1. error:
    root mean square of log(predicted / measured); among: mean distance of these from their mean at a product."""

    chosen: float
    among: float
    error: float

    def __str__(self) -> str:
        return f"{self.chosen:.1%} slower than the quickest, {self.error:.1%} off the times"


Grouped = Sequence[Sequence[Sample]]  # by product


def by_product(samples: Sequence[Sample]) -> Grouped:
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.product, []).append(sample)
    return list(found.values())


def loss(products: Grouped, gpu: Gpu) -> Loss:
    chosen, among, squares, count = 0.0, 0.0, 0.0, 0
    for samples in products:
        times = [predicted_us(sample.work, gpu) for sample in samples]
        chosen += math.log(samples[times.index(min(times))].us / min(sample.us for sample in samples))
        errors = [math.log(us / sample.us) for us, sample in zip(times, samples, strict=True)]
        mean = math.fsum(errors) / len(errors)
        among += math.fsum(abs(error - mean) for error in errors)
        squares += math.fsum(error * error for error in errors)
        count += len(errors)
    return Loss(math.expm1(chosen / len(products)), among / count, math.sqrt(squares / count))


def fit(
    samples: Sequence[Sample],
    start: Gpu,
    trials: int = TRIALS,
    most_s: float = math.inf,
    told: Callable[[float], None] = lambda done: None,
) -> Gpu:
    """From `start`, random steps in the logarithms of one to three numbers at once; a step that does not help is undone.

    told: called with the completed share of the trials. Raises ValueError for no samples."""
    if not samples:
        raise ValueError("no sample is given: a fit is to times of products")
    products, chance, began = by_product(samples), random.Random(SEED), time.monotonic()
    steps = dict.fromkeys(FITTED, STEP)
    best, least = start, _weighted(products, start, start)
    for trial in range(trials):
        if time.monotonic() - began > most_s:
            break
        names = chance.sample(FITTED, chance.choice((1, 1, 2, 3)))
        tried = _replaced(best, {name: getattr(best, name) * math.exp(chance.gauss(0, steps[name])) for name in names})
        found = _weighted(products, tried, start)
        better = found < least
        if better:
            best, least = tried, found
        for name in names:
            steps[name] = min(steps[name] * WIDER, MOST_STEP) if better else max(steps[name] * NARROWER, LEAST_STEP)
        told((trial + 1) / trials)
    return best


def _weighted(products: Grouped, gpu: Gpu, start: Gpu) -> float:
    chosen, among, error = loss(products, gpu)
    distance = math.fsum(x * x for x in moved(gpu, start).values()) / len(FITTED)
    return math.log1p(chosen) + AMONG * among + ERROR * error + MOVED * distance


def moved(gpu: Gpu, start: Gpu) -> Mapping[str, float]:
    """For each fitted number, the logarithm of its ratio to the old one."""
    return {name: math.log(getattr(gpu, name) / getattr(start, name)) for name in FITTED}


def _replaced(gpu: Gpu, numbers: Mapping[str, float]) -> Gpu:
    changed: Any = {name: _within(name, value) for name, value in numbers.items()}
    return replace(gpu, **changed)


def _within(name: str, value: float) -> float:
    """A norm's exponent is 1 at least, and a part of a whole 1 at most."""
    if name.startswith("overlap"):
        return min(max(value, 1.0), 12.0)
    return min(value, 1.0) if name == "pingpong_hides" else value
