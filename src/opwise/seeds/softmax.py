"""Triton 1.0: one row per program, against eager and torch.jit.script of the five lines, for M = 4096 over N; and 583x931 in a block of
1024.

Softmax is bound by memory: the figure is GB/s of reading and writing each element once, its roof a copy of as many bytes."""

from __future__ import annotations

from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.seeds.clocks import race
from opwise.seeds.experiment import Findings
from opwise.seeds.place import Place

ROWS = 4096
COLUMNS = (256, 512, 1024, 2048, 4096, 8192, 16384)
WAYS = {
    "Triton": "triton_jit/softmax",
    "torch.softmax": "torch_eager/softmax",
    "five lines": "torch_eager/softmax:manual",
    "torch.jit.script": "torch_eager/softmax:script",
}
ODD = Workload("softmax", (583, 931), "float32")
TEXTBOOK = "triton_jit/softmax:plain"
BUDGET_S = 0.12  # a candidate and size: 28 of them


def sweep(place: Place) -> Findings:
    rows: list[dict[str, float | str]] = []
    for columns in COLUMNS:
        workload = Workload("softmax", (ROWS, columns), "float32")
        nbytes = OPS["softmax"].cost(workload).bytes
        raced = race(place, workload, list(WAYS.values()), BUDGET_S)
        for label, name in WAYS.items():
            if name in raced.timings:
                t = raced.timings[name]
                rows.append({"columns": columns, "way": label, "us": t.median_us, "gb_per_s": nbytes / t.median_us / 1e3})
        rows.append({"columns": columns, "way": "limit", "us": (limit := place.limit_us(OPS["softmax"].cost(workload))),
                     "gb_per_s": nbytes / limit / 1e3})  # fmt: skip
    speed = {(str(r["way"]), int(r["columns"])): float(r["gb_per_s"]) for r in rows}
    missing = sorted({label for label in WAYS for columns in COLUMNS if (label, columns) not in speed})
    if "Triton" in missing:
        raise RuntimeError(f"Triton was not timed everywhere: {raced.absent}")
    best = {label: max(speed.get((label, c), 0.0) for c in COLUMNS) for label in WAYS}
    over = [c for c in COLUMNS if speed["Triton", c] >= 0.99 * max(speed.get((label, c), 0.0) for label in WAYS)]
    gain = [speed["Triton", c] / speed["torch.jit.script", c] for c in COLUMNS if ("torch.jit.script", c) in speed]
    scripted = f"{min(gain):.1f} to {max(gain):.1f} times the scripted five lines" if gain else "torch.jit.script was not timed"
    return Findings(
        f"Triton {best['Triton']:.0f} GB/s at best, torch {best['torch.softmax']:.0f}, scripted {best['torch.jit.script']:.0f}",
        f"Triton ahead or level at {len(over)} of {len(COLUMNS)} sizes, {scripted}"
        + (f"; not timed everywhere: {', '.join(missing)}" if missing else ""),
        len(over) == len(COLUMNS) and not missing,
        figures={f"{label}, N = {c}, GB/s": v for (label, c), v in speed.items()},
        rows=tuple(rows),
    )


def odd_shape(place: Place) -> Findings:
    raced = race(place, ODD, [TEXTBOOK, WAYS["torch.softmax"]], BUDGET_S)
    us = raced.us(TEXTBOOK)
    ratio = raced.over(WAYS["torch.softmax"], TEXTBOOK)
    return Findings(
        f"{us:.3g} us",
        f"right within the bound, a masked block of 1024; torch.softmax takes {ratio:.2f} of its time, cold",
        figures={"textbook Triton, cold, us": us, "torch.softmax over it": ratio},
    )
