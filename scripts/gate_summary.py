"""How the gate tells its verdict: a line a figure for the terminal, Markdown for a pull request's page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

TIMED = re.compile(r"track_(kernel_cold|kernel_capped|call_cost)\(")
BYTES = re.compile(r"track_\w*_bytes\(")
ORDER = ("worse", "fails now", "better", "works now")
SHUTS = ("worse", "fails now")
BOTH_LACK = "n/a in both"  # what a backend never had: counted, not named
NAMED = 10  # of what was not judged, that many are named: a lost backend is hundreds of cells


class Change(NamedTuple):
    """What became of one figure, `kind` being one of ORDER. A value of None failed."""

    name: str
    kind: str
    before: float | None
    after: float | None
    allowed: float

    def by(self) -> str:
        """ "+7.2%", or nothing where there is no ratio."""
        return f"{self.after / self.before - 1:+.1%}" if self.before and self.after is not None else ""

    def limit(self) -> str:
        return f"{self.allowed:.0%}" if self.allowed else "none"

    def line(self) -> str:
        amounts = f"{amount(self.name, self.before)} -> {amount(self.name, self.after)}"
        measured = self.before is not None and self.after is not None
        told = [amounts, self.by(), f"{self.limit()} is allowed" if measured else ""]
        return f"{self.kind:>9}  {self.name}  {', '.join(filter(None, told))}"

    def row(self) -> str:
        amounts = (amount(self.name, self.before), amount(self.name, self.after))
        return "| " + " | ".join((self.kind, f"`{self.name}`", *amounts, self.by(), self.limit())) + " |"


class Verdict(NamedTuple):
    """`unjudged`: why figures were not judged -> their names."""

    base: str
    head: str
    changes: Sequence[Change]
    judged: int
    unjudged: Mapping[str, Sequence[str]]
    timed: bool

    @property
    def worse(self) -> int:
        return sum(1 for change in self.changes if change.kind in SHUTS)

    def line(self) -> str:
        told = f"{self.worse} of {self.judged} figures of {self.head} are worse than those of {self.base}"
        return told + (": the gate is shut" if self.worse else "")

    def left_out(self) -> str:
        """What was not judged, in a line: "" where all was."""
        counts = [f"{len(names)} {why}" for why, names in self.unjudged.items()]
        if not self.timed:
            counts.append("all times (no GPU here, or --bench leaves them out)")
        return f"not judged: {', '.join(counts)}" if counts else ""

    def markdown(self) -> str:
        parts = [f"### Gate: {'shut' if self.worse else 'open'}", f"**{self.line()}.**"]
        if self.changes:
            ordered = sorted(self.changes, key=lambda change: ORDER.index(change.kind))
            head = ["| verdict | figure | before | after | change | allowed |", "|---|---|---:|---:|---:|---:|"]
            parts.append("\n".join([*head, *(change.row() for change in ordered)]))
        else:
            parts.append("No figure has changed by more than is allowed and by more than chance.")
        parts.append("; ".join(filter(None, [f"Judged: {self.judged} figures", self.left_out()])) + ".")
        for why, names in self.unjudged.items():
            if why != BOTH_LACK:
                more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
                parts.append(f"- {why}: {', '.join(f'`{name}`' for name in names[:NAMED])}{more}")
        if self.timed:
            parts.append("Times after are beside torch eager's, taken in turns with them; where --bench leaves eager out, as measured.")
        return "\n\n".join(parts) + "\n\n"


def not_judged(why: str) -> str:
    """The Markdown of a run that has no verdict."""
    return f"### Gate: not judged\n\n**This says nothing about the change.** {why}\n\n"


def amount(name: str, value: float | None) -> str:
    """A value of the figure `name`, with its unit."""
    if value is None:
        return "failed"
    if math.isnan(value):
        return "n/a"
    return f"{value * 1e6:.4g} us" if TIMED.search(name) else f"{value:,.0f}" + (" bytes" if BYTES.search(name) else "")
