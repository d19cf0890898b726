"""The smallest share that a kernel can leave out and be caught: the table of docs/checking.md, a line an op and dtype.

    python scripts/shares.py                         the core workloads that this machine can afford; on a GPU all
    python scripts/shares.py --set smoke

Faults are tests/planted.py's. Of each that leaves elements out, powers of two are tried, downwards from the largest; the table has the
worst of the set's workloads, elements of what a sum there is over. What leaves nothing out is caught or not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import torch  # noqa: E402
from planted import FAULTS, Fault, caught, length, slice_left_out, tail_left_out, tile_lacks_a_slice  # noqa: E402

from opwise.ops import OPS, Workload  # noqa: E402

LEAVE_OUT = (tail_left_out, slice_left_out, tile_lacks_a_slice)
OF_A_CPU = 1 << 21  # multiplications or elements


def least(fault: Fault, workload: Workload) -> int:
    """The fewest elements, a power of two, from which on all are caught; 0 where even half are not."""
    found, share = 0, 1 << length(workload).bit_length() - 1
    while share and caught(workload, fault, share):
        found, share = share, share // 2
    return found


def told(fault: Fault, workloads: list[Workload]) -> str:
    if not workloads:
        return ""
    if fault.compute not in LEAVE_OUT:
        missed = [str(w) for w in workloads if not caught(w, fault)]
        return f"not at {', '.join(missed)}" if missed else "caught"
    counts = {w: least(fault, w) for w in workloads}
    most = max(counts, key=lambda w: counts[w] / length(w) if counts[w] else 2.0)
    return f"{counts[most]} of {length(most)}" if counts[most] else f"not at {most}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", dest="name", default="core")
    name = parser.parse_args().name
    on_gpu = torch.cuda.is_available()
    names = list(dict.fromkeys(str(fault) for fault in FAULTS))
    print(f"| op, dtype | {' | '.join(n.replace('_', ' ') for n in names)} |\n|---|{'---|' * len(names)}", flush=True)
    for op, spec in OPS.items():
        for dtype in spec.dtypes:
            cells = dict.fromkeys(names, "")
            of_dtype = [w for w in spec.workloads[name] if w.dtype == dtype]
            cost = {w: max(spec.cost(w).flops / 2, spec.cost(w).bytes / 4) for w in of_dtype}
            for fault in FAULTS:
                cells[str(fault)] += told(fault, [w for w in of_dtype if fault.differs(w) and (on_gpu or cost[w] <= OF_A_CPU)])
            print(f"| {op}, {dtype} | {' | '.join(cells.values())} |", flush=True)


if __name__ == "__main__":
    main()
