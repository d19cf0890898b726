"""How do opwise's kernels stand beside other people's? Each is compared by what both were measured against: torch's copy, or cuBLAS.

    python scripts/peers.py --json peers.json        about a minute on an H200; prints the tables of docs/peers.md

A softmax's figure is the copy's time over its own, both cold, in turns, in one process; a product's is cuBLAS's time over its own. The
peers' figures stand here as they were measured on an H200 in November 2026, cold, in turns with the same copy and the same cuBLAS.
Exit status 1 where our best kernel is slower than the better of them by 1 % or more: closer than that is a tie, as everywhere in opwise.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from opwise.backends import BACKENDS, implementation
from opwise.measure.device import Monitor, facts
from opwise.measure.gpu import Launch
from opwise.measure.stats import TIE
from opwise.measure.timing import Clock, Timing
from opwise.measure.validate import check
from opwise.ops import OPS, Workload

# GB/s of the least traffic: torch's copy, QuACK 0.6.5, Liger 0.8.5. None: it refuses the shape or fails to launch.
SOFTMAX: dict[str, tuple[float, float | None, float | None]] = {
    "softmax/4096x1024/float32": (2570, 2689, 2621),
    "softmax/4096x4096/float32": (3665, 3479, 3727),
    "softmax/16384x4096/float32": (4147, 3861, 4066),
    "softmax/16384x16384/float32": (4248, 4110, 4134),
    "softmax/8192x32768/float32": (4244, 4151, 4151),
    "softmax/4096x65536/float32": (4254, 4147, 2775),
    "softmax/2048x131072/float32": (4254, 3953, None),
    "softmax/256x1048576/float32": (4241, None, None),
    "softmax/4096x1024/float16": (1949, 1960, 1808),
    "softmax/4096x4096/float16": (3212, 3098, 3154),
    "softmax/16384x4096/float16": (3997, 3878, 3830),
    "softmax/16384x16384/float16": (4183, 4114, 3931),
    "softmax/8192x32768/float16": (4198, 4131, 3211),
    "softmax/4096x65536/float16": (4168, 4159, 2455),
    "softmax/2048x131072/float16": (4193, 4161, None),
    "softmax/256x1048576/float16": (4193, 2658, None),
}
# TFLOP/s: cuBLAS through torch, QuACK 0.6.5.
MATMUL: dict[str, tuple[float, float | None, float | None]] = {
    "matmul/1024x1024x1024/bfloat16": (235, 177, None),
    "matmul/2048x2048x2048/bfloat16": (591, 580, None),
    "matmul/4096x4096x4096/bfloat16": (623, 626, None),
    "matmul/8192x8192x8192/bfloat16": (693, 705, None),
}
YARDSTICK = {"softmax": "copy", "matmul": "torch_eager"}
OURS = [backend for backend in BACKENDS if backend != "torch_eager"]
BUDGET_S = 0.2  # a candidate


def row(workload: Workload, clock: Clock) -> dict[str, Any]:
    """Cold times in us of the right implementations and of the yardstick, taken in turns."""
    device, spec = clock.device, OPS[workload.op]
    sets = clock.rotation(spec.cost(workload).bytes)
    inputs = [spec.make_inputs(workload, device, seed) for seed in range(sets)]
    exact = [x.double() for x in inputs[0]]
    reference = spec.reference(*exact)
    bound = spec.error_bound(workload, reference, *exact)
    del exact
    launches: dict[str, list[Launch]] = {}
    left_out: dict[str, str] = {}
    for backend in [*OURS, "torch_eager"] if workload.op == "matmul" else OURS:
        try:
            ready = implementation(f"{backend}/{workload.op}", device)
            verdict = check(ready.prepare, inputs[0], reference, bound)
            if not verdict.ok:
                left_out[backend] = f"wrong: {verdict.reason}"
                continue
            launches[backend] = [ready.prepare(*x, out=spec.empty_output(*x)) for x in inputs]
        except Exception as error:  # costs this one its place
            left_out[backend] = f"{type(error).__name__}: {error}"
    if workload.op == "softmax":
        pairs = [(x[0], torch.empty_like(x[0])) for x in inputs]
        launches["copy"] = [lambda x=x, y=y: y.copy_(x) for x, y in pairs]  # type: ignore[misc]
    del reference, bound
    timed: dict[str, Timing] = clock.cold(launches, budget_s=BUDGET_S)
    return {"workload": str(workload), "us": {name: t.median_us for name, t in timed.items()}, "left_out": left_out | clock.refusals}


def shares(found: dict[str, Any], published: tuple[float, float | None, float | None]) -> tuple[str, float, float]:
    """(our best backend, its share of the yardstick, the better peer's share of its own)."""
    us = dict(found["us"])
    yard = us.pop(YARDSTICK[found["workload"].split("/")[0]])
    best = min((name for name in us if name in OURS), key=lambda name: us[name])
    of = published[0]
    return best, yard / us[best], max((peer / of for peer in published[1:] if peer is not None), default=0.0)


def told(rows: list[dict[str, Any]], table: dict[str, tuple[float, float | None, float | None]]) -> list[str]:
    lines = ["| workload | best of opwise | share | QuACK | Liger |", "|---|---|---:|---:|---:|"]
    for found in rows:
        published = table[found["workload"]]
        best, share, _ = shares(found, published)
        theirs = [f"{peer / published[0]:.3f}" if peer is not None else "" for peer in published[1:]]
        lines.append(f"| `{found['workload']}` | {best} | {share:.3f} | {' | '.join(theirs)} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write times and facts there")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("peers: torch sees no GPU, and there is nothing to compare without one", file=sys.stderr)
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    clock, behind, all_rows = Clock(device, Monitor(device)), [], []
    for table in (SOFTMAX, MATMUL):
        rows = []
        with torch.no_grad():
            for name in table:
                rows.append(row(Workload.parse(name), clock))
                clock.refusals.clear()
                torch.cuda.empty_cache()
                print(f"  {name}: {rows[-1]['us']} {rows[-1]['left_out'] or ''}", file=sys.stderr, flush=True)
                best, share, theirs = shares(rows[-1], table[name])
                behind += [f"{name}: {best} {share:.3f}, a peer {theirs:.3f}"] if share < (1 - TIE) * theirs else []
        print("\n".join(told(rows, table)), end="\n\n")
        all_rows += rows
    if given.json:
        given.json.write_text(json.dumps({"facts": facts(device), "rows": all_rows}, indent=1), encoding="utf-8")
    print("\n".join(f"behind: {line}" for line in behind) if behind else "nowhere behind by 1 % or more")
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
