"""A run at a glance: which pairs of op and backend are right, and how close the costly workloads come to the limit.

The same rows serve the terminal and the README's Markdown. Where the power cap changes a time, a cell has the SOL of both states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from opwise.backends import BACKENDS
from opwise.ops import OPS
from opwise.record import Record
from opwise.report.groups import by_op, in_order
from opwise.report.states import both, is_first, readings
from opwise.report.tables import STYLES, only_compiled

SHAPES_AN_OP = 3
TWO_STATES = (
    "a / b: at full clock / power-capped, which is launches back to back with the clock pulled down by the power cap; each against the "
    "limit of its state."
)
NO_LIMIT = "A time in us: the run has no limit of the state that it was taken in."


@dataclass(frozen=True)
class Row:
    """One workload: the limit in us, and per backend the SOL of its unnamed variant, or what it has instead."""

    workload: str
    limit: str  # of both states where they differ
    cells: tuple[tuple[str, bool], ...]  # in the order of BACKENDS: (text, fastest or tied?)


def rows(records: Sequence[Record], dtypes: Iterable[str] = ("float32", "float16")) -> Iterator[Row]:
    """The costliest shapes of each op, in these dtypes."""
    kept = in_order(r for r in records if not r.variant and r.dtype in set(dtypes))
    for op in OPS:
        for workload in _costliest([r for r in kept if r.op == op]):
            group = {r.backend: r for r in kept if str(r.workload) == workload}
            full, capped = (next((v for r in group.values() if (v := getattr(r, name))), None) for name in ("limit_us", "capped_limit_us"))
            yield Row(workload, both(full, capped, "{:.1f}"), tuple(_cell(group.get(backend)) for backend in BACKENDS))


def _costliest(records: Sequence[Record]) -> list[str]:
    """By the limit; by its time, what has none."""
    costs: dict[tuple[int, ...], float] = {}
    for r in records:
        times = [x.limit_us or x.cold.median for x in readings(r)] or [r.limit_us or 0.0]
        costs[r.shape] = max(costs.get(r.shape, 0.0), times[0])
    kept = sorted(costs, key=lambda shape: costs[shape])[-SHAPES_AN_OP:]
    return list(dict.fromkeys(str(r.workload) for r in records if r.shape in kept))


def _cell(r: Record | None) -> tuple[str, bool]:
    if r is None:
        return "n/a", False
    if not r.timed:
        return r.status, False
    return both(r.sol, r.capped_sol, "{:.2f}") or f"{readings(r)[0].cold.median:.4g} us", is_first(r)


def _notes(shown: Sequence[Row]) -> str:
    """What is to be said below the table, of what stands in it."""
    texts = [text for row in shown for text, _ in row.cells]
    found = {TWO_STATES: any(" / " in text for text in texts), NO_LIMIT: any(text.endswith(" us") for text in texts)}
    return " ".join(note for note, applies in found.items() if applies)


def markdown(records: Sequence[Record]) -> str:
    """SOL per workload and backend, bold where fastest or tied, in both states where they differ; below it what is to be said of it."""
    shown = list(rows(records))
    lines = [["workload", "limit us", *BACKENDS], ["---", *["---:"] * (1 + len(BACKENDS))]]
    for row in shown:
        lines.append([f"`{row.workload}`", row.limit, *(f"**{text}**" if best else text for text, best in row.cells)])
    notes = _notes(shown)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + (f"\n\n{notes}" if notes else "")


def table(records: Sequence[Record]) -> Table:
    """The same for a terminal, or for a file, where nothing is bold."""
    drawn = list(rows(records))
    shown = Table(title="SOL = limit / cold kernel time; + fastest or tied", title_justify="left", show_edge=False, pad_edge=False,
                  caption=_notes(drawn) or None, caption_justify="left")  # fmt: skip
    for name in ("workload", "limit us", *BACKENDS):
        shown.add_column(name, justify="left" if name == "workload" else "right", no_wrap=True)
    for row in drawn:
        shown.add_row(row.workload, row.limit, *(f"[bold green]{text}[/]+" if best else f"{text} " for text, best in row.cells))
    return shown


def verdicts(records: Sequence[Record]) -> Table:
    """Op by backend: how many cells are ok, and in what; all else by its status."""
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
