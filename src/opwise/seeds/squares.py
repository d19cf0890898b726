"""GPU MODE, lecture 1: `torch.square(x)`, `x * x` and `x ** 2` of 10000x10000 float32 values, by events and by the profiler.

400 MB are read and 400 MB written, far more than the T4's 4 MB of L2, or 60 MB. So the missing flush matters little here."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.seeds.clocks import event_us, race, told_us
from opwise.seeds.experiment import Findings
from opwise.seeds.place import Place
from opwise.seeds.profiles import NO_GPU, autograd_profiled

WORKLOAD = Workload("square", (10000, 10000), "float32")
ALIKE = 0.05  # the profiler's times hold the launch, which the T4's 3 ms hid: on a faster GPU they may differ, and that is then told
SMALL = Workload("square", (100, 100), "float32")
WAYS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "torch.square(x)": ("torch_eager/square", torch.square),
    "x * x": ("torch_eager/square:mul", lambda x: x * x),
    "x ** 2": ("torch_eager/square:pow", lambda x: x**2),
}


def timed(place: Place) -> Findings:
    (x,) = OPS["square"].make_inputs(WORKLOAD, place.device, 0)
    once = {label: event_us(place, lambda function=function: function(x)) for label, (_, function) in WAYS.items()}  # type: ignore[misc]
    names = [name for name, _ in WAYS.values()]
    raced = race(place, WORKLOAD, names)
    cold = {label: raced.us(name) for label, (name, _) in WAYS.items()}
    alike = raced.alike(names)
    figures = {f"{label}, one event sample, us": us for label, us in once.items()} | {
        f"{label}, cold, us": us for label, us in cold.items()
    }
    apart = max(cold.values()) / min(cold.values()) - 1
    said = "alike" if alike else "not alike"
    return Findings(
        " / ".join(told_us(us) for us in cold.values()),
        f"{said}, {100 * apart:.1f} % apart in interleaved launches; one event sample of each, the published way: "
        f"{' / '.join(told_us(us) for us in once.values())}, {100 * (max(once.values()) / min(once.values()) - 1):.1f} % apart",
        alike, cold["torch.square(x)"], figures,
    )  # fmt: skip


def through_the_profiler(place: Place) -> Findings:
    """CUDA and CPU time of each by the autograd profiler, in the source's order and reversed, to see whether the largest CPU time moves
    with the order. Without a GPU, the CPU's part for a small one."""
    (x,) = OPS["square"].make_inputs(WORKLOAD if place.gpu else SMALL, place.device, 0)
    autograd_profiled(place, lambda: x + 1)  # the first one of a process starts CUPTI
    found = {}
    for turn, labels in (("in order", list(WAYS)), ("reversed", list(WAYS)[::-1])):
        for label in labels:
            function = WAYS[label][1]
            found[turn, label] = autograd_profiled(place, lambda function=function: function(x))  # type: ignore[misc]
    tables = {label: found["in order", label].table for label in WAYS}
    gpu = {label: min(found[turn, label].kernel_us for turn in ("in order", "reversed")) for label in WAYS}
    if not all(gpu.values()):
        missing = ", ".join(label for label, us in gpu.items() if not us)
        return Findings(NO_GPU, f"no time of a GPU for {missing}", not place.gpu, tables=tables)
    figures = {f"{label}, {turn}, {kind} us": us for (turn, label), each in found.items()
               for kind, us in (("CUDA", each.kernel_us), ("CPU", each.cpu_us))}  # fmt: skip
    cpu = {turn: [found[turn, label].cpu_us for label in WAYS] for turn in ("in order", "reversed")}
    apart = max(gpu.values()) / min(gpu.values()) - 1
    return Findings(
        f"CUDA {' / '.join(told_us(us) for us in gpu.values())}, CPU {' / '.join(told_us(us) for us in cpu['in order'])}",
        f"CUDA times, of events around each operator with its launch in them, {100 * apart:.1f} % apart; the CPU time is of one sample, "
        f"the wait for the GPU in it, and profiled in the opposite order it is {' / '.join(told_us(us) for us in cpu['reversed'])}",
        apart < ALIKE, gpu["torch.square(x)"], figures, tables=tables,
    )  # fmt: skip
