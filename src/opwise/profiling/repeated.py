"""Launches from a cold and from a warm L2 under the profiler, prepared like those of `opwise run`.

By the workload's bytes: a flush before each launch, launches that cycle over several sets of buffers, or over so many that each is used
once after a flush. The flush, sets and spin are those of `opwise run`. Only the time stamps differ: CUPTI stamps the beginning and the end
of each kernel, while events and graphs also count the gap to the next launch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from torch import Tensor

from opwise.backends.protocol import Launch
from opwise.measure.gpu import Queue
from opwise.measure.rounds import BACKLOG, BATCH, LEAST_BACKLOG_US, MOST_BACKLOG_US
from opwise.measure.timing import WARM_UP_S, once
from opwise.profiling.capture import COLD, FLUSH, WARM, WARM_UP, Stages, label

COUNT = 60  # of each: CUPTI's median of 60 is within 0.5 % on a GPU left alone, and a trace stays under a few MB
MOST_WARM_UPS = 400  # launches, about: 200 ms where a kernel takes half a millisecond, as those do that heat a GPU


def sets_of(stages: Stages, sets: int) -> list[Launch]:
    """One launch per set of buffers, each with its own inputs and output; bound without a label, since they are no calls."""
    assert stages.bind is not None, "compile() comes first"
    launches = []
    for i in range(sets):
        inputs: tuple[Tensor, ...] = stages.inputs if i == 0 else tuple(x.clone() for x in stages.inputs)
        launches.append(stages.bind(*inputs, stages.implementation.op.empty_output(*inputs)))
    return launches


def repeat(queue: Queue, launches: Sequence[Launch], count: int = COUNT) -> None:
    """`count` launches or more with the L2 cold, then as many with it warm, each in its labelled range.

    One launch given: the L2 is flushed before each. Several: whole cycles over them. So many that each is used `once`: one flush for all of
    them."""
    batch = min(BATCH, count)
    alone = len(launches) == 1 or once(len(launches))
    launched = batch if alone else len(launches) * (1 + math.ceil(batch / len(launches)))
    with queue.ready():
        began, done, enqueued_us = time.monotonic(), 0, 0.0
        while (done < MOST_WARM_UPS and time.monotonic() - began < WARM_UP_S) or not done:
            enqueued_us = _cold(queue, launches, batch, WARM_UP, enqueued_us)
            done += launched
        for _ in range(math.ceil(count / batch)):
            enqueued_us = _cold(queue, launches, batch, COLD, enqueued_us)
        for name in (WARM_UP, WARM):
            enqueued_us = _batch(queue, [lambda name=name: _labelled(name, launches[0])] * min(count, 2 * BATCH), enqueued_us)  # type: ignore[misc]


def _cold(queue: Queue, launches: Sequence[Launch], count: int, name: str, enqueued_us: float) -> float:
    def flush() -> None:
        with label(FLUSH):
            queue.flush()

    counted = [lambda launch=launch: _labelled(name, launch) for launch in launches]
    if len(launches) == 1:
        return _batch(queue, [flush, *counted] * count, enqueued_us)
    if once(len(launches)):
        return _batch(queue, [flush, *counted[:count]], enqueued_us)
    before = [lambda launch=launch: _labelled(WARM_UP, launch) for launch in launches]
    turns = math.ceil(count / len(launches))
    return _batch(queue, before + counted * turns, enqueued_us)  # the first turn makes the L2 what the others find


def _labelled(name: str, launch: Launch) -> None:
    with label(name):
        launch()


def _batch(queue: Queue, steps: Sequence[Callable[[], None]], enqueued_us: float) -> float:
    """Runs the steps behind a spin that outlasts their enqueueing, waits, and returns what enqueueing one took."""
    queue.spin(min(max(BACKLOG * enqueued_us * len(steps), LEAST_BACKLOG_US), MOST_BACKLOG_US))
    began = queue.now_us()
    for step in steps:
        step()
    took = (queue.now_us() - began) / len(steps)
    queue.wait()
    return took
