"""Writes the figures of docs/kernels.md: `python scripts/kernels_doc.py`, after COMMAND on a GPU has stored its run in LADDERS_RUNS.

Between `<!-- table NAME -->` or `<!-- figure NAME -->` and `<!-- end -->` stands what a stored run says of a ladder, or of a rung of it;
the run is the newest that has every rung at every workload of the ladder. tests/test_kernels_doc.py holds the page to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from opwise import clocks
from opwise.commands.console import where
from opwise.record import FULL, STATES, Record, read
from opwise.report.ladders import LADDERS, Cells, Ladder, cells, newest, told
from opwise.run_files import runs

ROOT = Path(__file__).resolve().parents[1]
LADDERS_RUNS = ROOT / "results" / "ladders"  # apart from the runs that `opwise choose` and `show` take the newest of
PAGE = ROOT / "docs" / "kernels.md"
BLOCK = re.compile(r"(<!-- (table|figure) (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
NOT_YET = "not measured yet"


COMMAND = " ".join(
    ["opwise run --out results/ladders --set sweep --variants --brief", *dict.fromkeys(x.name.split("/")[0] for x in LADDERS),
     *dict.fromkeys(w for x in LADDERS for w in x.workloads)]
)  # fmt: skip


def shown(ladder: Ladder, variant: str, workload: str, known: Cells) -> str:
    """Time, share of the limit, and how many times faster than the next rung below that has a time; in each state of the clock that the run
    tells, where the power cap changes the time."""
    record = known[ladder.rung(variant), workload]
    below = [known[ladder.rung(v), workload] for v in reversed(ladder.rungs[: ladder.rungs.index(variant)])]
    if not record.timed:
        return record.status
    if record.kernel_capped_us is None:
        return _in_state(record, below, FULL, "")
    states = [state for state in STATES if record.kernel_us(state) is not None]
    return ", and ".join(_in_state(record, below, state, f" {clocks.TOLD[state]}") for state in states)


def _in_state(record: Record, below: Sequence[Record], state: str, named: str) -> str:
    us = clocks.kernel(record, (state,))[0]
    sol = record.sol if state == FULL else record.capped_sol
    timed = next((interval for r in below if (interval := r.kernel_us(state)) is not None), None)
    return f"{told(us)}{named}" + (f", SOL {sol:.2f}" if sol is not None else "") + (f", {timed.median / us:.2f}x" if timed else "")


def table(ladder: Ladder, run: Sequence[Record]) -> str:
    if not run:
        return f"{NOT_YET}: `{COMMAND}`\n"
    known = cells(run)
    rows = [["rung", *(f"`{w}`" for w in ladder.workloads)], ["---"] * (1 + len(ladder.workloads))]
    rows += [[f"`{ladder.rung(v)}`", *(shown(ladder, v, w, known) for w in ladder.workloads)] for v in ladder.rungs]
    lines = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"{where(list(run))}. Cold kernel time, share of the limit, times faster than the rung before.\n\n{lines}\n"


def figure(ladder: Ladder, variant: str, run: Sequence[Record]) -> str:
    if not run:
        return f"{NOT_YET}\n"
    known = cells(run)
    return "; ".join(f"`{w}`: {shown(ladder, variant, w, known)}" for w in ladder.workloads) + ".\n"


def filled(page: str, found: Sequence[Sequence[Record]]) -> str:
    """The page with what the runs, oldest first, say between its marks. Raises KeyError for a mark that names no ladder and no rung."""
    by_name = {ladder.name: ladder for ladder in LADDERS}

    def of(block: re.Match[str]) -> str:
        name, _, variant = block[3].partition(":")
        ladder = by_name[name]
        if variant not in ladder.rungs:
            raise KeyError(f"{PAGE.name} asks for {block[3]}, which is no rung of {name}: there are {', '.join(ladder.rungs)}")
        run = newest(ladder, found)
        return block[1] + (table(ladder, run) if block[2] == "table" else figure(ladder, variant, run)) + block[5]

    return BLOCK.sub(of, page)


def recorded(folder: Path = LADDERS_RUNS) -> list[list[Record]]:
    """The runs stored there, oldest first."""
    return [read(path) for path in runs(folder)]


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), recorded()), encoding="utf-8")
