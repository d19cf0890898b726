"""GPU MODE, lecture 1: the mean of 10000x10000 float32 values three ways, ten of them as a Chrome trace, and Triton's with one partial sum
per block."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor
from torch.profiler import record_function

from opwise.backends import implementation
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.seeds.clocks import events_us, race, told_us
from opwise.seeds.experiment import Findings
from opwise.seeds.place import Place
from opwise.seeds.profiles import NO_GPU, profiled, warmed

WORKLOAD = Workload("mean", (10000, 10000), "float32")
SMALL = Workload("mean", (100, 100), "float32")
RUNS = 100  # the source's
WAYS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "torch.mean(x)": ("torch_eager/mean", torch.mean),
    "x.mean()": ("torch_eager/mean:method", lambda x: x.mean()),
    "torch.sum(x) / x.numel()": ("torch_eager/mean:sum", lambda x: torch.sum(x) / x.numel()),
}
ALIKE = 0.1  # the third divides in a second kernel, and expressions pay for a copy of 4 bytes: 2 us or so each, of a hundred on an H200
MEANS = 10
TRACE = "mean_trace.json"
PARTIALS = Workload("mean", (1_000_000,), "float32")


def timed(place: Place) -> Findings:
    (x,) = OPS["mean"].make_inputs(WORKLOAD, place.device, 0)
    events = {label: fmean(events_us(place, lambda function=function: function(x), RUNS)) for label, (_, function) in WAYS.items()}  # type: ignore[misc]
    names = [name for name, _ in WAYS.values()]
    raced = race(place, WORKLOAD, names)
    cold = {label: raced.us(name) for label, (name, _) in WAYS.items()}
    alike = raced.alike(names, ALIKE)
    figures = {f"{label}, mean of {RUNS} events, us": us for label, us in events.items()}
    figures |= {f"{label}, cold, us": us for label, us in cold.items()}
    return Findings(
        " / ".join(told_us(us) for us in cold.values()),
        f"{'alike' if alike else 'not alike'} within {100 * (max(cold.values()) / min(cold.values()) - 1):.1f} %, each expression with the "
        f"copy into its output; {RUNS} event-timed runs: {' / '.join(told_us(us) for us in events.values())}",
        alike, cold["torch.mean(x)"], figures,
    )  # fmt: skip


def tables(place: Place) -> Findings:
    """key_averages of each: which kernels it calls, and their times. Without a GPU, the CPU's part for a small one."""
    (x,) = OPS["mean"].make_inputs(WORKLOAD if place.gpu else SMALL, place.device, 0)
    warmed(place, x.mean)
    found = {label: profiled(place, lambda function=function: function(x)) for label, (_, function) in WAYS.items()}  # type: ignore[misc]
    figures = {f"{label}, {kind} us": us for label, each in found.items() for kind, us in (("CUDA", each.kernel_us), ("CPU", each.cpu_us))}
    counts, tables = [len(each.kernels) for each in found.values()], {label: each.table for label, each in found.items()}
    if not any(counts):
        return Findings(NO_GPU, "no kernel was recorded", not place.gpu, figures=figures, tables=tables)
    return Findings(
        " / ".join(told_us(each.kernel_us) for each in found.values()),
        f"{' / '.join(map(str, counts))} kernels: the sum and its division are two, or one more than the mean has",
        counts[2] > counts[0] >= 1, figures=figures, tables=tables,
    )  # fmt: skip


def trace(place: Place) -> Findings:
    """Ten means under the profiler, written as a Chrome trace and read again. Without a GPU the trace holds only the CPU's part."""
    (x,) = OPS["mean"].make_inputs(WORKLOAD if place.gpu else SMALL, place.device, 0)
    x.mean()

    def ten_means() -> None:
        for i in range(MEANS):
            with record_function(f"mean {i}"):
                x.mean()

    found = profiled(place, ten_means)
    with tempfile.TemporaryDirectory(prefix="opwise-seeds-") as folder:
        path = Path(folder, TRACE)
        found.profiler.export_chrome_trace(str(path))
        text = path.read_text()
    events = json.loads(text)["traceEvents"]
    labels = len({e["name"] for e in events if e.get("cat") == "user_annotation" and str(e.get("name")).startswith("mean ")})
    kernels = sum(e.get("cat") == "kernel" for e in events)
    return Findings(
        f"{len(events)} events, {len(text) / 1e3:.0f} kB",
        f"opens as JSON, with {labels} labelled means and {kernels if place.gpu else 'no'} kernels; seeds trace --keep DIR keeps it, "
        f"opwise timeline --from DIR/{TRACE} reads it",
        labels == MEANS and (kernels >= MEANS or not place.gpu),
        figures={"events": len(events), "labelled means": labels, **({"kernels": kernels} if place.gpu else {})},
        files={TRACE: text},
    )


def partials(place: Place) -> Findings:
    """The difference to torch.mean, which the source prints, and that to the float64 mean; the bound is the op's."""
    (x,) = OPS["mean"].make_inputs(PARTIALS, place.device, 0)
    out = OPS["mean"].empty_output(x)
    implementation("triton_jit/mean:plain", place.device).prepare(x, out=out)()
    place.wait()
    reference = OPS["mean"].reference(x.double())
    bound = float(OPS["mean"].error_bound(PARTIALS, reference, x.double()))
    apart, error, torchs = abs(float(out - x.mean())), abs(float(out - reference)), abs(float(x.mean() - reference))
    return Findings(
        f"difference {apart:.3g}",
        f"off the float64 mean by {error:.2g}, torch.mean by {torchs:.2g}, where {bound:.2g} is allowed",
        error <= bound,
        figures={"difference to torch.mean": apart, "difference to float64": error, "torch.mean to float64": torchs},
    )
