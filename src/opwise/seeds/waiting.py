"""CS336, lecture 6: print(loss) in a training loop is a hidden synchronisation. To print a value the CPU waits for all enqueued work, and
enqueues nothing meanwhile."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable

import torch

from opwise.measure.stats import median
from opwise.seeds.clocks import told_us
from opwise.seeds.experiment import Findings
from opwise.seeds.place import Place

STEPS, TRIALS = 20, 5
READ = "aten::_local_scalar_dense"  # a value of a tensor to Python: on a GPU a copy and a wait


def values_read(run: Callable[[], object]) -> int:
    """The number of tensor values that become Python's in it. Counted by the profiler, since printing a tensor disables modes that see
    operators."""
    with torch.autograd.profiler.profile() as profiler:
        run()
    return sum(event.name == READ for event in profiler.function_events)


def hidden_wait(place: Place) -> Findings:
    """A loop with and without print(loss): values read per step; on a GPU, also the time until all is enqueued and until all is done."""
    rows, width = (2048, 2048) if place.gpu else (8, 8)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, width)).to(place.device)
    x = torch.randn(rows, width, device=place.device)
    reads, enqueued, done = {}, {}, {}
    for printed in (False, True):
        _loop(model, x, printed)  # loads the kernels
        place.wait()
        trials = []
        for _ in range(TRIALS):
            began = time.perf_counter()
            _loop(model, x, printed)
            asked = time.perf_counter() - began
            place.wait()
            trials.append((asked, time.perf_counter() - began))
        enqueued[printed], done[printed] = (median([trial[i] for trial in trials]) * 1e6 for i in range(2))
        reads[printed] = values_read(lambda printed=printed: _loop(model, x, printed)) / STEPS  # type: ignore[misc]
    said = f"print(loss) reads {reads[True]:g} values a step, each a copy and a wait on a GPU; without it {reads[False]:g}"
    figures = {"values read a step, print(loss)": reads[True], "values read a step, without": reads[False]}
    shown = reads[True] >= 1 and reads[False] == 0
    if not place.gpu:
        return Findings(f"{reads[True]:g} reads a step, {reads[False]:g} without", said, shown, figures=figures)
    figures |= {f"{what}, {name} us": us[printed] for what, us in (("enqueued", enqueued), ("done", done))
                for name, printed in (("print(loss),", True), ("without,", False))}  # fmt: skip
    told = {printed: f"enqueued after {told_us(enqueued[printed])} of {told_us(done[printed])}" for printed in (False, True)}
    return Findings(
        f"without {told[False]}, with print(loss) {told[True]}",
        f"{said}; {STEPS} steps, of which the GPU waits for the CPU where the two are the same",
        shown and enqueued[True] > 0.9 * done[True] and enqueued[False] < enqueued[True],
        figures=figures,
    )


def _loop(model: torch.nn.Module, x: torch.Tensor, printed: bool) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        for _ in range(STEPS):
            model.zero_grad(set_to_none=True)
            loss = model(x).square().mean()
            loss.backward()
            if printed:
                print(loss)  # noqa: T201
