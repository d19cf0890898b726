"""What the choice is worth on a GPU that there are stored runs of: on shapes that nobody measured, and against torch eager.

Both tests time, so they want the GPU for themselves: without xdist, as `pytest tests/test_choosing_gpu.py -s` prints the figures.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_kernels import EAGER
from support import gpu_alone
from torch import Tensor

import opwise
from opwise import clocks, library
from opwise.choosing import asked, query, selection
from opwise.choosing.query import choose_from
from opwise.choosing.store import Store
from opwise.measure.device import Monitor
from opwise.measure.timing import Clock, paired_ratio
from opwise.ops import OPS, Workload
from opwise.ops.spec import elements


def recorded_here() -> bool:
    return torch.cuda.is_available() and asked.here("cuda:0") in selection.recorded().gpus


pytestmark = [
    *gpu_alone("what a choice is worth shows in times"),
    pytest.mark.skipif(not recorded_here(), reason="no stored run of this GPU: `opwise run` makes one"),
    pytest.mark.filterwarnings("ignore::opwise.choosing.selection.StaleFigures"),  # the commit under test need not be the recorded one
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

SEED, SHAPES = 20261123, 40
# log2 of the sizes that the core set spans, and of the most elements of one tensor.
RANGES = {"square": ((10, 28),), "mean": ((10, 28),), "gelu": ((10, 28),), "softmax": ((5, 16), (5, 20)), "matmul": ((5, 13),) * 3}
MOST_ELEMENTS, MOST_FLOPS = 2**28, 2e11


def tell(line: str) -> None:
    """Shown with -s, and where a test fails."""
    sys.stdout.write(line + "\n")


def unseen(seed: int = SEED, count: int = SHAPES) -> list[Workload]:
    """Workloads over the ops in turns, sizes even in their logarithm, half of them multiples of 8; none of them in any set."""
    rng = random.Random(seed)
    known = {(w.op, OPS[w.op].sizes(w.shape)) for spec in OPS.values() for group in spec.workloads.values() for w in group}
    found: list[Workload] = []
    while len(found) < count:
        op = list(OPS)[len(found) % len(OPS)]
        shape = tuple(round(2 ** rng.uniform(*span)) for span in RANGES[op])
        if rng.random() < 0.5:
            shape = tuple(max(8, n // 8 * 8) for n in shape)
        workload = Workload(op, shape, rng.choice(OPS[op].dtypes))
        fits = OPS[op].cost(workload).flops <= MOST_FLOPS and (op == "matmul" or elements(shape) <= MOST_ELEMENTS)
        if fits and (op, OPS[op].sizes(shape)) not in known:
            found.append(workload)
    return found


def test_on_unseen_shapes_the_choice_is_nearly_the_best(tmp_path: Path) -> None:
    """Within 3 % of the best measured stream time at the median, and within 10 % at worst."""
    from opwise.runner.session import Session
    from opwise.runner.survey import survey

    workloads, store = unseen(), Store.load(library.stored(query.OWN))
    choices = {w: choose_from(store, w, "cuda:0") for w in workloads}
    assert not any(s.basis == "measured" for c in choices.values() for s in c.ranking)
    session = Session.planned(survey("cuda:0"), [str(w) for w in workloads], "core", variants=False, timed=True, out=tmp_path, brief=True)
    for _ in session.events():
        pass
    lost = {}
    for workload, choice in choices.items():
        timed = [r for r in session.records if r.workload == workload and r.status == "ok" and r.timed]
        states = clocks.common(timed)
        stream = {r.backend: max(clocks.kernel(r, states)[0], r.call_us.median) for r in timed if r.call_us}
        lost[workload] = stream[choice.backend] / min(stream.values())
        best = min(stream, key=lambda b: stream[b])
        said, found = f"{choice.backend:12} {choice.chosen.basis:12} {choice.chosen.us:9.1f} us", f"{stream[choice.backend]:9.1f} us"
        tell(f"{workload!s:36} {said} said, {found} measured, {lost[workload]:.3f} of {best}'s")
    assert len(lost) == SHAPES
    assert np.median(list(lost.values())) <= 1.03
    assert max(lost.values()) <= 1.10


def test_dispatch_is_never_slower_than_torch_eager() -> None:
    """Stream time on every core workload, both ways timed in turns, at most 2 % over torch eager's."""
    clock = Clock(torch.device("cuda", 0), Monitor(torch.device("cuda", 0)))
    slower = {}
    for workload in (w for spec in OPS.values() for w in spec.workloads["core"]):
        with workload.precision(), torch.no_grad():
            ratio, told = slower[workload] = stream_ratio(clock, workload)
        tell(f"{workload!s:34} {ratio:.3f}  {told}")
        torch.cuda.empty_cache()
    assert not {str(w): told for w, (ratio, told) in slower.items() if ratio > 1.02}


def stream_ratio(clock: Clock, workload: Workload) -> tuple[float, str]:
    """Stream time of opwise over torch eager's, and the figures it is made of."""
    spec, dispatched, eager = OPS[workload.op], getattr(opwise, workload.op), EAGER[workload.op]
    inputs = spec.make_inputs(workload, clock.device, 1)
    sets = [inputs] + [tuple(x.clone() for x in inputs) for _ in range(clock.rotation(spec.cost(workload).bytes) - 1)]
    ways = {"opwise": dispatched, "eager": eager}
    for function in ways.values():
        for _ in range(2):
            function(*inputs)
    torch.cuda.synchronize()
    cold = clock.cold({name: [bound(function, x) for x in sets] for name, function in ways.items()})
    call = clock.call_cost({name: bound(function, inputs) for name, function in ways.items()}, budget_s=0.15)
    kernel_bound = cold["eager"].median_us > call["eager"].median_us and cold["opwise"].median_us > call["opwise"].median_us
    call_bound = cold["eager"].median_us < call["eager"].median_us and cold["opwise"].median_us < call["opwise"].median_us
    if kernel_bound or call_bound:
        counted = cold if kernel_bound else call
        ratio = paired_ratio(counted["opwise"], counted["eager"])[0]
    else:
        ratio = max(cold["opwise"].median_us, call["opwise"].median_us) / max(cold["eager"].median_us, call["eager"].median_us)
    told = ", ".join(f"{name} {cold[name].median_us:.2f} us cold, {call[name].median_us:.2f} us a call" for name in ways)
    return ratio, told


def bound(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Any:
    return lambda: function(*inputs)


def test_inside_a_captured_graph_the_choice_computes_with_what_is_there_at_replay() -> None:
    for op, shape in (("softmax", (4096, 4096)), ("matmul", (16, 4096, 4096)), ("mean", (8192, 8192)), ("gelu", (4096, 4096))):
        workload = Workload(op, shape, "float16")
        inputs = OPS[op].make_inputs(workload, torch.device("cuda", 0), 1)
        function = getattr(opwise, op)
        with workload.precision(), torch.no_grad():
            function(*inputs)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = function(*inputs)
            for seed in (2, 3):
                for x, fresh in zip(inputs, OPS[op].make_inputs(workload, torch.device("cuda", 0), seed), strict=True):
                    x.copy_(fresh)
                graph.replay()
                torch.cuda.synchronize()
                torch.testing.assert_close(out, EAGER[op](*inputs), rtol=2e-2, atol=2e-2)
