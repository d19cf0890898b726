"""A run at a glance: which pairs of op and backend are right, and how close the costly workloads come to the limit.

The same rows serve the terminal and the README's Markdown.
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
from opwise.report.tables import STYLES, only_compiled, standing

SHAPES_AN_OP = 3


@dataclass(frozen=True)
class Row:
    """One workload: the limit in us, and per backend the SOL of its unnamed variant, or what it has instead."""

    workload: str
    limit_us: float | None
    cells: tuple[tuple[str, bool], ...]  # in the order of BACKENDS: (text, fastest or tied?)


def rows(records: Sequence[Record], dtypes: Iterable[str] = ("float32", "float16")) -> Iterator[Row]:
    """The costliest shapes of each op, in these dtypes."""
    kept = in_order(r for r in records if not r.variant and r.dtype in set(dtypes))
    for op in OPS:
        for workload in _costliest([r for r in kept if r.op == op]):
            group = {r.backend: r for r in kept if str(r.workload) == workload}
            limit = next((r.limit_us for r in group.values() if r.limit_us), None)
            yield Row(workload, limit, tuple(_cell(group.get(backend)) for backend in BACKENDS))


def _costliest(records: Sequence[Record]) -> list[str]:
    limits: dict[tuple[int, ...], float] = {}
    for r in records:
        limits[r.shape] = max(limits.get(r.shape, 0.0), r.limit_us or 0.0)
    kept = sorted(limits, key=lambda shape: limits[shape])[-SHAPES_AN_OP:]
    return list(dict.fromkeys(str(r.workload) for r in records if r.shape in kept))


def _cell(r: Record | None) -> tuple[str, bool]:
    if r is None:
        return "n/a", False
    if r.sol is None:
        return r.status, False
    return f"{r.sol:.2f}", standing(r) in ("fastest", "tie")


def markdown(records: Sequence[Record]) -> str:
    """SOL per workload and backend, bold where fastest or tied."""
    lines = [["workload", "limit us", *BACKENDS], ["---", *["---:"] * (1 + len(BACKENDS))]]
    for row in rows(records):
        limit = "" if row.limit_us is None else f"{row.limit_us:.1f}"
        lines.append([f"`{row.workload}`", limit, *(f"**{text}**" if best else text for text, best in row.cells)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table(records: Sequence[Record]) -> Table:
    """The same for a terminal, or for a file, where nothing is bold."""
    shown = Table(title="SOL = limit / cold kernel time; + fastest or tied", title_justify="left", show_edge=False, pad_edge=False)
    for name in ("workload", "limit us", *BACKENDS):
        shown.add_column(name, justify="left" if name == "workload" else "right", no_wrap=True)
    for row in rows(records):
        limit = "" if row.limit_us is None else f"{row.limit_us:.1f}"
        shown.add_row(row.workload, limit, *(f"[bold green]{text}[/]+" if best else f"{text} " for text, best in row.cells))
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
