"""How do opwise's kernels stand beside other people's? Each is compared by what both were measured against: torch's copy, or cuBLAS.

    python scripts/peers.py --json peers.json        about a minute on an H200; prints the tables of docs/peers.md

A softmax's figure is the copy's time over its own, both cold, in turns, in one process; a product's is cuBLAS's time over its own. A
peer that can be imported (`pip install quack-kernels liger-kernel`) is *measured* so too, beside ours, with the same clock and check; it
adds half a minute, and the first time as much again for compiling. The figures of one that cannot are *quoted*: they stand here as they
were measured on an H200 in November 2026, cold, in turns with the same copy and the same cuBLAS, but by another clock.
Exit status 1 where our best kernel is slower than the better of them by 1 % or more: closer than that is a tie, as everywhere in opwise.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from peers_kernels import KERNELS, installed

from opwise.backends import BACKENDS, implementation
from opwise.measure.device import Monitor, facts
from opwise.measure.gpu import Launch
from opwise.measure.stats import TIE
from opwise.measure.timing import Clock, Timing
from opwise.measure.validate import check
from opwise.ops import OPS, Workload

Published = tuple[float, float | None, float | None]

# GB/s of the least traffic: torch's copy, QuACK 0.6.5, Liger 0.8.5. None: it refuses the shape or fails to launch.
SOFTMAX: dict[str, Published] = {
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
MATMUL: dict[str, Published] = {
    "matmul/1024x1024x1024/bfloat16": (235, 177, None),
    "matmul/2048x2048x2048/bfloat16": (591, 580, None),
    "matmul/4096x4096x4096/bfloat16": (623, 626, None),
    "matmul/8192x8192x8192/bfloat16": (693, 705, None),
}
PEERS = ("quack", "liger")  # in the order of the figures above
YARDSTICK = {"softmax": "copy", "matmul": "torch_eager"}
OURS = [backend for backend in BACKENDS if backend != "torch_eager"]
BUDGET_S = 0.2  # a candidate


def row(workload: Workload, clock: Clock, beside: Collection[str] = ()) -> dict[str, Any]:
    """Cold times in us of the right implementations, of the peers in `beside` and of the yardstick, taken in turns."""
    device, spec = clock.device, OPS[workload.op]
    sets = clock.rotation(spec.cost(workload).bytes)
    inputs = [spec.make_inputs(workload, device, seed) for seed in range(sets)]
    exact = [x.double() for x in inputs[0]]
    reference = spec.reference(*exact)
    bound = spec.error_bound(workload, reference, *exact)
    del exact
    launches: dict[str, list[Launch]] = {}
    left_out: dict[str, str] = {}
    chosen: dict[str, str] = {}
    theirs = {peer: make for peer, make in KERNELS[workload.op].items() if peer in beside}
    for name in [*OURS, "torch_eager", *theirs]:
        try:
            if name in theirs:
                prepare, chosen[name] = theirs[name](clock, inputs)
            else:
                prepare = implementation(f"{name}/{workload.op}", device).prepare
            verdict = check(prepare, inputs[0], reference, bound)
            if not verdict.ok:
                left_out[name] = f"wrong: {verdict.reason}"
                continue
            launches[name] = [prepare(*x, out=spec.empty_output(*x)) for x in inputs]
        except Exception as error:  # costs this one its place
            left_out[name] = f"{type(error).__name__}: {error}"
    if workload.op == "softmax":
        pairs = [(x[0], torch.empty_like(x[0])) for x in inputs]
        launches["copy"] = [lambda x=x, y=y: y.copy_(x) for x, y in pairs]  # type: ignore[misc]
    del reference, bound
    timed: dict[str, Timing] = clock.cold(launches, budget_s=BUDGET_S)
    found = {"workload": str(workload), "us": {name: t.median_us for name, t in timed.items()}, "left_out": left_out | clock.refusals}
    return found | {"chosen": {name: how for name, how in chosen.items() if how}, "measured": [peer for peer in PEERS if peer in theirs]}


def standing(found: dict[str, Any], published: Published) -> dict[str, dict[str, Any]]:
    """Each peer's share of the yardstick, and whether it was measured beside ours.

    One that fails here alone counts by what is quoted of it, so that no fault of the set-up puts a peer behind. None where there is
    nothing to quote either, since it has no kernel for the shape.
    """
    us, yard = found["us"], found["us"][YARDSTICK[found["workload"].split("/")[0]]]
    peers: dict[str, dict[str, Any]] = {}
    for peer, figure in zip(PEERS, published[1:], strict=True):
        if peer in found["measured"] and (peer in us or figure is None):
            peers[peer] = {"share": yard / us[peer] if peer in us else None, "source": "measured"}
        else:
            peers[peer] = {"share": figure / published[0] if figure is not None else None, "source": "quoted"}
    return peers


def shares(found: dict[str, Any], published: Published) -> tuple[str, float, float]:
    """(our best backend, its share of the yardstick, the better peer's share of its own)."""
    us = found["us"]
    yard = us[YARDSTICK[found["workload"].split("/")[0]]]
    best = min((name for name in us if name in OURS), key=lambda name: us[name])
    theirs = [peer["share"] for peer in standing(found, published).values() if peer["share"] is not None]
    return best, yard / us[best], max(theirs, default=0.0)


def told(rows: list[dict[str, Any]], table: dict[str, Published]) -> list[str]:
    lines = ["| workload | best of opwise | share | QuACK | Liger |", "|---|---|---:|---:|---:|"]
    for found in rows:
        best, share, _ = shares(found, table[found["workload"]])
        theirs = [
            f"{peer['share']:.3f} {peer['source']}" if peer["share"] is not None else ""
            for peer in standing(found, table[found["workload"]]).values()
        ]
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
    versions, missing = installed()
    for peer in PEERS:
        print(f"{peer} {versions[peer]}: measured beside" if peer in versions else f"{peer}: quoted, {missing[peer]}", flush=True)
    clock, about, behind, all_rows = Clock(device, Monitor(device)), facts(device), [], []
    for table in (SOFTMAX, MATMUL):
        rows = []
        with torch.no_grad():
            for name in table:
                found = row(Workload.parse(name), clock, versions)
                found["peers"] = standing(found, table[name])
                clock.refusals.clear()
                torch.cuda.empty_cache()
                print(f"  {name}: {found['us']} {found['chosen'] or ''} {found['left_out'] or ''}", file=sys.stderr, flush=True)
                best, share, theirs = shares(found, table[name])
                behind += [f"{name}: {best} {share:.3f}, a peer {theirs:.3f}"] if share < (1 - TIE) * theirs else []
                rows.append(found)
                if given.json:  # each time, so that what was measured outlasts a fault of somebody's kernel
                    written = {"facts": about, "peers": versions, "rows": all_rows + rows}
                    given.json.write_text(json.dumps(written, indent=1), encoding="utf-8")
        print("\n".join(told(rows, table)), end="\n\n", flush=True)
        all_rows += rows
    print("\n".join(f"behind: {line}" for line in behind) if behind else "nowhere behind by 1 % or more")
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
