"""How much faster was the run on several GPUs than that on one, and did it measure the same? A row of the table in docs/scaling.md.

    python scripts/scaling.py ONE.jsonl MANY.jsonl --seconds 433 117 --gpus 4 --how 'opwise run --gpus all' --at-least 3.7

`--seconds` are the wall times of the two commands, start to end. Medians are cold kernel times, of both states of the clock where both runs
hold them, cell by cell: those that both runs took on one GPU tell what running beside others costs, the rest how GPUs of one model differ
as well. Exit status 1 where the run on several GPUs is not as fast, holds other cells, or differs by more than `--within` in more than one
cell of a hundred.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from opwise import clocks
from opwise.record import Record, read, read_extra

OUTLIERS = 0.01  # of the cells: two runs on one GPU differ by more than 1.5 % in some of the shortest


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare a run on several GPUs with one on one GPU.")
    parser.add_argument("one", type=Path)
    parser.add_argument("many", type=Path)
    parser.add_argument("--seconds", type=float, nargs=2, required=True)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--how", default="opwise run --gpus")
    parser.add_argument("--at-least", type=float, default=0.0)
    parser.add_argument("--within", type=float, default=0.015)
    given = parser.parse_args()
    one, many = cells(read(given.one)), cells(read(given.many))
    both = {cell: (cold(one[cell], many[cell]), cold(many[cell], one[cell])) for cell in one if cell in many}
    ratios = {cell: several / alone for cell, (alone, several) in both.items() if alone and several}
    same = {cell for cell in ratios if one[cell].gpu == many[cell].gpu}
    outside = sorted((cell for cell in ratios if abs(ratios[cell] - 1) > given.within), key=lambda cell: -abs(ratios[cell] - 1))
    faster = given.seconds[0] / given.seconds[1]
    compiled = next((line.get("seconds") for line in read_extra(given.many, "compiled")), None)
    built = [r.prepare_s for r in many.values() if r.prepare_s is not None]
    print("| GPUs | command | seconds | times as fast | within | of them on the same GPU | median | compiling, s | longest late build, s |")
    print(
        f"| {given.gpus} | `{given.how}` | {given.seconds[1]:.0f} of {given.seconds[0]:.0f} | {faster:.2f} | "
        f"{len(ratios) - len(outside)} of {len(ratios)} | {len(same - set(outside))} of {len(same)} | "
        f"{statistics.median(ratios.values()) if ratios else float('nan'):.4f} | "
        f"{'' if compiled is None else f'{compiled:.1f}'} | {max(built, default=0):.2f} (all {sum(built):.1f}) |"
    )
    for cell in outside[:20]:
        where = "the same" if cell in same else "another"
        print(f"  {ratios[cell]:.4f}  {cell[0]} {cell[1]}  {both[cell][0]:.3f} us on one, {both[cell][1]:.3f} us on {where}")
    counts = {gpu: sum(r.gpu == gpu for r in many.values()) for gpu in sorted({r.gpu for r in many.values()})}
    print(f"  cells a GPU: {counts}; only in one of the two: {len(one.keys() ^ many.keys())}; statuses: {statuses(many)}")
    right = faster >= given.at_least and one.keys() == many.keys() and len(outside) <= OUTLIERS * len(ratios)
    sys.exit(0 if right else 1)


def cells(records: list[Record]) -> dict[tuple[str, str], Record]:
    return {(r.implementation, str(r.workload)): r for r in records}


def cold(record: Record, *beside: Record) -> float:
    """us, in the states of the clock in which the record and those beside it are timed; 0 where one was not timed."""
    if not all(r.timed for r in (record, *beside)):
        return 0.0
    return clocks.kernel(record, clocks.common([record, *beside]))[0]


def statuses(found: dict[tuple[str, str], Record]) -> dict[str, int]:
    told = [r.status for r in found.values()]
    return {status: told.count(status) for status in sorted(set(told))}


if __name__ == "__main__":
    main()
