"""The smallest share that a kernel can leave out and be caught: the table of docs/checking.md, a line an op and dtype.

    python scripts/shares.py      on a GPU of the core workloads, else of those that a CPU can afford

Faults are tests/planted.py's. Of each that leaves elements out, powers of two are tried, downwards from the largest; the table has the
worst of the workloads in one run of each, elements of what a sum there is over. What leaves nothing out is caught or not.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from planted import FAULTS, SEEDS, TRIED, Fault, caught, length, slice_left_out, tail_left_out, tile_lacks_a_slice  # noqa: E402
from support import ON_GPU  # noqa: E402

from opwise.ops import OPS, Workload  # noqa: E402

LEAVE_OUT = (tail_left_out, slice_left_out, tile_lacks_a_slice)


def least(fault: Fault, workload: Workload) -> int:
    """The fewest elements, a power of two, from which on all are caught; 0 where even half are not."""
    found, share = 0, 1 << length(workload).bit_length() - 1
    while share and caught(workload, fault, share, SEEDS[:1]):
        found, share = share, share // 2
    return found


def told(fault: Fault, workloads: list[Workload]) -> str:
    if not workloads:
        return ""
    if fault.compute not in LEAVE_OUT:
        missed = [str(w) for w in workloads if not caught(w, fault, seeds=SEEDS[:1])]
        return f"not at {', '.join(missed)}" if missed else "caught"
    counts = {w: least(fault, w) for w in workloads}
    most = max(counts, key=lambda w: (counts[w] or math.inf, length(w)))
    return f"{counts[most]} of {length(most)}" if counts[most] else f"not at {most}"


def main() -> None:
    names = list(dict.fromkeys(str(fault) for fault in FAULTS))
    print(f"| op, dtype | {' | '.join(n.replace('_', ' ') for n in names)} |\n|---|{'---|' * len(names)}", flush=True)
    for op, spec in OPS.items():
        for dtype in spec.dtypes:
            cells = dict.fromkeys(names, "")
            workloads = [w for w in (spec.workloads["core"] if ON_GPU else TRIED) if (w.op, w.dtype) == (op, dtype)]
            for fault in FAULTS:
                cells[str(fault)] += told(fault, [w for w in workloads if fault.differs(w)])
            print(f"| {op}, {dtype} | {' | '.join(cells.values())} |", flush=True)


if __name__ == "__main__":
    main()
