"""Faults of the published code, each shown once. What opwise compares with has none of them unless its name says so."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from opwise.backends import implementation, probe
from opwise.measure.stats import median, median_interval
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.seeds.clocks import event_us, events_us, race, spread, timed, told_us
from opwise.seeds.experiment import Findings
from opwise.seeds.place import Place

SAMPLES = 100
MEAN = Workload("mean", (10000, 10000), "float32")
BLOCK = 1024
SIZES = (1448, 16384)  # on a side: 16 MB and 2 GiB in and out


def gelu_nan(place: Place) -> Findings:
    """Finds the x from which tanh a = (e^2a - 1) / (e^2a + 1) in float32 is nan. Without a GPU, in Triton's interpreter."""
    x = torch.arange(0.0, 16.0, 1 / 64, device=place.device)
    out = {}
    for name in ("triton_jit/gelu:textbook", "triton_jit/gelu"):
        out[name] = OPS["gelu"].empty_output(x)
        implementation(name, place.device).prepare(x, out=out[name])()
    place.wait()
    bad = out["triton_jit/gelu:textbook"].isnan()
    good = bool(out["triton_jit/gelu"].isfinite().all())
    first = float(x[bad][0]) if bool(bad.any()) else float("inf")
    return Findings(
        f"nan from x = {first:g} on",
        f"{int(bad.sum())} of {x.numel()} values from 0 to 16 are nan where GELU is x; x / (1 + 2^z) has {'none' if good else 'some'}",
        bool(bad.any()) and good and bool(bad[x >= first].all()),
        figures={"first x that is nan": first},
    )


def gelu_double(place: Place) -> Findings:
    """Double-precision instructions of the classroom GELU in CUDA C++, read from the machine code; no GPU needed."""
    from opwise.inspecting.rows import inspected

    arch = _arch(place)
    counts: dict[str, int] = {}
    reasons = []
    for backend in ("cupy_raw", "torch_inline"):
        _, found = inspected(backend, "gelu", arch, "float32")
        for row, _kernel in found:
            if row.status == "ok":
                counts[row.implementation] = max(counts.get(row.implementation, 0), row.classes.get("double", 0))
            else:
                reasons.append(f"{row.implementation}: {row.reason}")
        if f"{backend}/gelu:textbook" in counts:
            textbook, ours = counts[f"{backend}/gelu:textbook"], counts[f"{backend}/gelu"]
            return Findings(
                f"{textbook} double instructions",
                f"{textbook} in the classroom kernel, {ours} in opwise's; {arch}, {'NVRTC' if backend == 'cupy_raw' else 'nvcc'}",
                textbook > 0 and ours == 0,
                figures={"double instructions, classroom": textbook, "double instructions, opwise": ours},
            )
    raise RuntimeError(f"no compiler of CUDA C++ works here: {'; '.join(reasons)}: opwise backends says what to install")


def _arch(place: Place) -> str:
    from opwise.inspecting.compilers import ARCHITECTURES

    if place.gpu:
        major, minor = torch.cuda.get_device_capability(place.device)
        if f"sm_{major}{minor}" in ARCHITECTURES:
            return f"sm_{major}{minor}"
    return "sm_90"


def softmax_unshifted(place: Place) -> Findings:
    """The naive five lines compute the maximum but exponentiate the unshifted input: right below 88.7, inf / inf above."""
    outputs = {}
    for name in ("unshifted", "manual"):
        ready = implementation(f"torch_eager/softmax:{name}", place.device)
        for top in (50.0, 100.0):
            x = torch.linspace(-10.0, top, 257, device=place.device).repeat(3, 1)
            out = OPS["softmax"].empty_output(x)
            ready.prepare(x, out=out)()
            place.wait()
            outputs[name, top] = out
    wrong = int(outputs["unshifted", 100.0].isnan().sum())
    fine = bool(outputs["unshifted", 50.0].isfinite().all() and outputs["manual", 100.0].isfinite().all())
    return Findings(
        f"{wrong} nan of {outputs['unshifted', 100.0].numel()}",
        "rows that reach 100 come out as nan and 0, rows that reach 50 right; with the shift both are",
        wrong > 0 and fine,
        figures={"nan": wrong},
    )


def mean_scalar(place: Place) -> Findings:
    """A block loop that adds one element per step, against a block loaded at once: load widths in the machine code, and times."""
    from opwise.backends.triton_jit.common.specimen import compiled
    from opwise.inspecting.facts import facts

    if place.gpu:
        probe("triton_jit", place.device)
    from opwise.backends.triton_jit.mean import specimens
    from opwise.seeds.triton_kernels import SCALAR_MEAN

    arch = _arch(place)
    kernels = {"loop": SCALAR_MEAN, "block": specimens(arch)["plain, float32"]}
    read = facts([compiled(specimen, arch).asm["cubin"] for specimen in kernels.values()], arch)
    widest = {}
    for label, found in zip(kernels, read, strict=True):
        (kernel,) = found.values()
        widest[label] = max(kernel.accesses["global load"])
    said = f"a thread of the loop loads {widest['loop']} bytes at a time, of the block {widest['block']} ({arch})"
    figures = {"loop, widest load, bytes": widest["loop"], "block, widest load, bytes": widest["block"]}
    shown = widest["loop"] < widest["block"]
    if not place.gpu:
        return Findings(f"{widest['loop']}-byte loads", said, shown, figures=figures)
    us, ratio = _scalar_over_block(place)
    return Findings(
        f"{ratio:.0f} times slower", f"{told_us(us)}; {said}", shown and ratio > 1.5, figures={**figures, "loop over block": ratio}
    )


def _scalar_over_block(place: Place) -> tuple[float, float]:
    """us of the loop, and its time over that of the block kernel; the loop's sum is checked first."""
    from opwise.seeds.triton_kernels import bound_scalar_mean

    block_kernel = implementation("triton_jit/mean:plain", place.device)

    @cache
    def inputs(i: int) -> Tensor:
        return OPS["mean"].make_inputs(MEAN, place.device, i)[0]

    def partials(i: int) -> Tensor:
        return torch.empty(-(-inputs(i).numel() // BLOCK), device=place.device)

    x, sums = inputs(0), partials(0)
    bound_scalar_mean(x.view(-1), sums, BLOCK)()
    place.wait()
    off = abs(float(sums.double().sum() / x.numel() - x.double().mean()))
    if not off < 1e-6:
        raise RuntimeError(f"the scalar mean is off by {off:.3g}")
    found = timed(place, {
        "loop": lambda i: bound_scalar_mean(inputs(i).view(-1), partials(i), BLOCK),
        "block": lambda i: block_kernel.prepare(inputs(i), out=OPS["mean"].empty_output(inputs(i))),
    }, 4 * x.numel())  # fmt: skip
    return found["loop"].median_us, found["loop"].median_us / found["block"].median_us


def one_sample(place: Place) -> Findings:
    """A hundred single event-timed samples of one square, any of which could have been published."""
    x = torch.randn(2048, 2048, device=place.device)
    samples = events_us(place, lambda: x * x, SAMPLES)
    middle, low, high = median_interval(samples)
    return Findings(
        f"{told_us(min(samples))} to {told_us(max(samples))}",
        f"{SAMPLES} single samples spread over {100 * spread(samples):.0f} % of their median {told_us(middle)}, whose 95 % interval is "
        f"{told_us(low)} to {told_us(high)}",
        spread(samples) > (high - low) / middle,
        figures={"least, us": min(samples), "median, us": median(samples), "largest, us": max(samples)},
    )


def no_flush(place: Place) -> Findings:
    """A square of 16 MB and one of 2 GiB, warm as in all sources, and cold: the first stays in the L2, the second does not fit."""
    figures: dict[str, float] = {}
    ratios: list[float] = []
    for n in SIZES:
        workload, name = Workload("square", (n, n), "float32"), "torch_eager/square"
        cold = race(place, workload, [name], 0.2).us(name)
        (x,) = OPS["square"].make_inputs(workload, place.device, 0)
        out = torch.empty_like(x)
        launch = implementation(name, place.device).prepare(x, out=out)
        warm = place.clock.warm({name: launch})[name].median_us
        figures |= {f"{n}x{n}, cold, us": cold, f"{n}x{n}, warm, us": warm, f"{n}x{n}, one event sample, us": event_us(place, launch)}
        ratios.append(cold / warm)
    return Findings(
        f"cold over warm {ratios[0]:.2f} and {ratios[1]:.2f}",
        f"without a flush a square of 16 MB looks {ratios[0]:.2f} times as fast as it is from memory, one of 2 GiB {ratios[1]:.2f} times",
        ratios[0] > 1.05 and abs(ratios[1] - 1) < 0.05,
        figures=figures,
    )
