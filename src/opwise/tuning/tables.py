"""Stored tables as they are shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.markup import escape
from rich.table import Table as Grid

from opwise.backends.tuned_table import Elsewhere, Row, Table
from opwise.tuning.measuring import wrong
from opwise.tuning.planning import Sheet, total_s


def headline(table: Table) -> str:
    changed = ", changed since" if table.dirty else ""
    versions = ", ".join(f"{name} {version}" for name, version in table.versions.items())
    return (
        f"{table.name}: {len(table.rows)} workloads measured through {table.through}, {versions}, driver {table.driver or 'unknown'}, "
        f"commit {table.commit or 'unknown'}{changed}, digest {table.digest}"
    )


def grid(rows: Sequence[Row]) -> Grid:
    """A row per workload: its configuration, the previous one, and the gain."""
    shown = Grid(show_edge=False, pad_edge=False)
    for name in ("workload", "chosen", "us", "95 % interval", "shipped", "us ", "gain", "measured", "slowest us", "SM MHz"):
        shown.add_column(name, justify="left" if name in ("workload", "chosen", "shipped") else "right")
    for row in rows:
        best, before = row.times[row.chosen], row.times[row.shipped]
        same = row.chosen == row.shipped
        shown.add_row(
            escape(row.workload), f"[bold]{escape(row.chosen)}[/]", f"{best.us:.4g}", f"{best.low:.4g} to {best.high:.4g}",
            "the same" if same else escape(row.shipped), "" if same else f"{before.us:.4g}", "" if same else f"{row.gain:.3f}",
            str(len(row.times)), f"{max(t.us for t in row.times.values()):.4g}", f"{row.sm_clock_mhz:.0f}" if row.sm_clock_mhz else "",
        )  # fmt: skip
    return shown


def elsewhere(table: Table) -> Iterator[str]:
    """A line per dtype: the rule for unmeasured sizes, and its test."""
    for dtype, rule in table.elsewhere.items():
        yield f"{dtype}, other sizes: {_RULES[rule.rule]}{_proof(rule)}"


_RULES = {
    "nearest": "what the nearest of these sizes gets",
    "shipped": "the shipped table",
}


def _proof(rule: Elsewhere) -> str:
    if rule.loss is None or rule.shipped_loss is None:
        return " (too few workloads for another rule)"
    return f" (left out in turn, it was {rule.loss - 1:.1%} slower than the quickest; the shipped choices {rule.shipped_loss - 1:.1%})"


def troubles(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        for name, why in wrong(row).items():
            yield f"{row.workload} {name}: {why}"


def planned(sheets: Sequence[Sheet]) -> Grid:
    """The output of --dry-run."""
    shown = Grid(show_edge=False, pad_edge=False)
    for name in ("table", "through", "workloads", "configurations", "kernels to compile", "times to take", "about s"):
        shown.add_column(name, justify="left" if name in ("table", "through") else "right")
    for sheet in (s for s in sheets if not s.why_not):
        names = len(sheet.stand.configurations)
        counts = (len(sheet.jobs), names, len(sheet.builds), sheet.cells, round(sheet.measuring_s))
        shown.add_row(sheet.table, sheet.stand.through, *map(str, counts))
    return shown


def about(sheets: Sequence[Sheet]) -> str:
    return f"about {total_s(sheets):.0f} s with start and compiling, where no kernel is compiled yet"
