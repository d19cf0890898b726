"""Writes the figures of docs/kernels.md: `python scripts/kernels_doc.py`, after COMMAND on a GPU has stored its run in LADDERS_RUNS.

Between `<!-- table NAME -->` or `<!-- figure NAME -->` and `<!-- end -->` stands what a stored run says of a ladder, or of a rung of it;
the run is the newest that has every rung at every workload of the ladder. tests/test_kernels_doc.py holds the page to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opwise import clocks
from opwise.commands.console import where
from opwise.record import FULL, STATES, Record, read
from opwise.run_files import runs

ROOT = Path(__file__).resolve().parents[1]
LADDERS_RUNS = ROOT / "results" / "ladders"  # apart from the runs that `opwise choose` and `show` take the newest of
PAGE = ROOT / "docs" / "kernels.md"
BLOCK = re.compile(r"(<!-- (table|figure) (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
NOT_YET = "not measured yet"


@dataclass(frozen=True)
class Ladder:
    """The variants of an implementation from the slowest to the one to use, "", and the workloads at which they are shown."""

    name: str
    rungs: tuple[str, ...]
    workloads: tuple[str, ...]

    def rung(self, variant: str) -> str:
        return f"{self.name}:{variant}" if variant else self.name


SOFTMAX = ("softmax/4096x4096/float32", "softmax/4096x4096/float16", "softmax/2048x131072/float32")
LADDERS = (
    Ladder("torch_inline/softmax", ("textbook", "coalesced", "online", "registers", ""), SOFTMAX),
    Ladder("triton_jit/softmax", ("passes", "online", ""), SOFTMAX),
    Ladder("torch_inline/matmul", ("textbook", "shared", "registers", "vectors", "mma", ""),
           ("matmul/4096x4096x4096/float32", "matmul/4096x4096x4096/float16")),
    Ladder("triton_jit/matmul", ("textbook", "tiles", "grouped", "pointers", ""),
           ("matmul/4096x4096x4096/float16", "matmul/8192x8192x8192/float16")),
)  # fmt: skip
COMMAND = " ".join(
    ["opwise run --out results/ladders --set sweep --variants --brief", *dict.fromkeys(x.name.split("/")[0] for x in LADDERS),
     *dict.fromkeys(w for x in LADDERS for w in x.workloads)]
)  # fmt: skip

Cells = Mapping[tuple[str, str], Record]  # by implementation and workload


def cells(records: Sequence[Record]) -> Cells:
    return {(r.implementation, str(r.workload)): r for r in records if r.stand_in is None}


def newest(ladder: Ladder, found: Sequence[Sequence[Record]]) -> Sequence[Record]:
    """The last of these runs, oldest first, that has the whole ladder; () where none has."""
    wanted = {(ladder.rung(variant), workload) for variant in ladder.rungs for workload in ladder.workloads}
    return next((run for run in reversed(found) if wanted <= cells(run).keys()), ())


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


def _in_state(record: Record, below: Sequence[Record], state: str, told: str) -> str:
    us = clocks.kernel(record, (state,))[0]
    sol = record.sol if state == FULL else record.capped_sol
    timed = next((interval for r in below if (interval := r.kernel_us(state)) is not None), None)
    return f"{us:.4g} us{told}" + (f", SOL {sol:.2f}" if sol is not None else "") + (f", {timed.median / us:.2f}x" if timed else "")


def table(ladder: Ladder, run: Sequence[Record]) -> str:
    if not run:
        return f"{NOT_YET}: `{COMMAND}`\n"
    known = cells(run)
    rows = [["rung", *(f"`{w}`" for w in ladder.workloads)], ["---"] * (1 + len(ladder.workloads))]
    rows += [[f"`{ladder.rung(v)}`", *(shown(ladder, v, w, known) for w in ladder.workloads)] for v in ladder.rungs]
    lines = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"{where(list(run))}. Cold kernel time, share of the limit, times faster than the rung below.\n\n{lines}\n"


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
