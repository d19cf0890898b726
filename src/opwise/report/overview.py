"""A run at a glance: which pairs of op and backend are right, and how close a few workloads of each op come to the limit.

The same rows serve the terminal and the README's Markdown. If the power cap changes a time, a cell has the SOL of both states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from opwise.backends import BACKENDS
from opwise.choosing.store import stale
from opwise.ops import OPS
from opwise.record import Record
from opwise.report.groups import by_op, in_order
from opwise.report.states import both, is_first, readings
from opwise.report.tables import STYLES, only_compiled

PICKED = (
    "Of each op the least, the largest (in float32 too) and the largest with an odd size, in float16, and the workload at which a backend "
    "is furthest behind the fastest."
)
TWO_STATES = (
    "a / b: at full clock / power-capped, which is launches back to back with the clock pulled down by the power cap; each against the "
    "limit of its state."
)
NO_LIMIT = "A time in us: the run has no limit of the state that it was taken in."
UNCONVERGED, STALE = "*", "†"
MARKS = {
    UNCONVERGED: f"{UNCONVERGED} the median's interval did not become narrow.",
    STALE: f"{STALE} stale: of other sources of the kernel than are here.",
}


@dataclass(frozen=True)
class Row:
    """One workload: the limit in us, and per backend the SOL of its unnamed variant, or why there is none."""

    workload: str
    limit: str  # of both states where they differ
    cells: tuple[tuple[str, bool], ...]  # in the order of BACKENDS: (text, fastest or tied?)


def rows(records: Sequence[Record]) -> Iterator[Row]:
    """The workloads that PICKED names."""
    kept = in_order(r for r in records if not r.variant)
    for op in OPS:
        for workload in _picked([r for r in kept if r.op == op]):
            group = {r.backend: r for r in kept if str(r.workload) == workload}
            full, capped = (next((v for r in group.values() if (v := getattr(r, name))), None) for name in ("limit_us", "capped_limit_us"))
            yield Row(workload, both(full, capped, "{:.1f}"), tuple(_cell(group.get(backend)) for backend in BACKENDS))


def _picked(records: Sequence[Record]) -> list[str]:
    """In the order of the records."""
    half = [r for r in records if r.dtype == "float16"] or list(records)
    odd = [r for r in half if any(n % 2 and n > 1 for n in r.shape)]
    single = [r for r in records if r.dtype == "float32"]
    asked = [(min, half, _cost), (max, half, _cost), (max, odd, _cost), (max, single, _cost), (max, records, _behind)]
    chosen = [pick(of, key=by, default=None) for pick, of, by in asked]
    names = {str(r.workload) for r in chosen if r}
    return [name for name in dict.fromkeys(str(r.workload) for r in records) if name in names]


def _cost(r: Record) -> float:
    """The limit; where there is none, the time."""
    return next((x.limit_us or x.cold.median for x in readings(r)), r.limit_us or 0.0)


def _behind(r: Record) -> float:
    return max((x.versus[0] for x in readings(r) if x.versus), default=0.0)


def _cell(r: Record | None) -> tuple[str, bool]:
    if r is None:
        return "n/a", False
    if not r.timed:
        return r.status, False
    text = both(r.sol, r.capped_sol, "{:.2f}") or f"{readings(r)[0].cold.median:.4g} us"
    marks = ("" if all(x.cold.converged for x in readings(r)) else UNCONVERGED) + (STALE if stale(r, None) else "")
    return text + marks, is_first(r)


def _notes(shown: Sequence[Row]) -> str:
    """What is to be said below the table, of what stands in it."""
    texts = [text for row in shown for text, _ in row.cells]
    found = {PICKED: bool(shown), TWO_STATES: any(" / " in text for text in texts), NO_LIMIT: any(" us" in text for text in texts)}
    found |= {note: any(mark in text for text in texts) for mark, note in MARKS.items()}
    return " ".join(note for note, applies in found.items() if applies)


def markdown(records: Sequence[Record]) -> str:
    """SOL per workload and backend, bold if fastest or tied, in both states if they differ; notes below."""
    shown = list(rows(records))
    lines = [["workload", "limit us", *BACKENDS], ["---", *["---:"] * (1 + len(BACKENDS))]]
    for row in shown:
        lines.append([f"`{row.workload}`", row.limit, *(f"**{text}**" if best else text for text, best in row.cells)])
    notes = _notes(shown)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + (f"\n\n{notes}" if notes else "")


def table(records: Sequence[Record]) -> Table:
    """The same for a terminal, or for a file, without bold."""
    drawn = list(rows(records))
    shown = Table(title="SOL = limit / cold kernel time; + fastest or tied", title_justify="left", show_edge=False, pad_edge=False,
                  caption=_notes(drawn) or None, caption_justify="left")  # fmt: skip
    for name in ("workload", "limit us", *BACKENDS):
        shown.add_column(name, justify="left" if name == "workload" else "right", no_wrap=True)
    for row in drawn:
        shown.add_row(row.workload, row.limit, *(f"[bold green]{text}[/]+" if best else f"{text} " for text, best in row.cells))
    return shown


def verdicts(records: Sequence[Record]) -> Table:
    """Op by backend: the number of ok cells by where they ran; other cells by status."""
    shown = Table(title="verdicts", title_justify="left", title_style="bold", show_edge=False, pad_edge=False)
    found = {r.backend: None for r in records}
    backends = [name for name in BACKENDS if name in found] + [name for name in found if name not in BACKENDS]
    for name in ("op", *backends):
        shown.add_column(name)
    for op, of_op in by_op(records):
        shown.add_row(escape(op), *(_counted([r for r in of_op if r.backend == name]) for name in backends))
    return shown


def _counted(records: Sequence[Record]) -> str:
    counts = Counter((r.status, _outcome(r)) for r in records)
    return "\n".join(f"[{STYLES[status]}]{n} {escape(outcome)}[/]" for (status, outcome), n in counts.items())


def _outcome(r: Record) -> str:
    if r.status == "ok":
        return f"ok ({r.stand_in})" if r.stand_in else "ok"
    return "compiled, not run" if only_compiled(r) else r.status
