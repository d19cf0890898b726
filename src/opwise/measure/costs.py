"""CPU cost of a launch or a call: blocks of calls between two waits for the GPU, which are outside the timed span."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .gpu import Queue
from .rounds import Course, Rounds

CPU_LAUNCHES = 20  # a block: far under the 1024 entries of the launch queue, also for ten kernels a launch
CPU_FEWEST = 3
DRAIN_US = 2_000.0  # of GPU work that a block may leave behind


def cost_course(name: str, call: Callable[[], Any], rounds: Rounds) -> Course:
    """A course with as many calls per block as give the GPU at most `DRAIN_US` of work."""
    gpu_us = rounds.probe_us([call])
    return Course(name, call, launches=max(CPU_FEWEST, min(CPU_LAUNCHES, int(DRAIN_US / gpu_us))))


def cost_block(course: Course, queue: Queue) -> None:
    """One sample, us per call. The caller waits for the GPU before and after."""
    call = course.step
    call()  # the first launch after an idle spell is dearer than those of a busy program
    began = queue.now_us()
    for _ in range(course.launches):
        call()
    course.blocks.append([(queue.now_us() - began) / course.launches])
