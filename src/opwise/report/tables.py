"""Records as a terminal shows them: per op one table, implementations as rows, the fastest and its ties marked."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from opwise.measure.stats import tied
from opwise.ops import OPS
from opwise.record import Interval, Record
from opwise.report.groups import by_op, grouped, in_order

STYLES = {"ok": "green", "wrong": "bold red", "failed": "bold red", "timeout": "bold red", "unsupported": "yellow", "unavailable": "dim"}


def standing(record: Record) -> str:
    """`fastest`, `tie` (within 1 % of it, or an interval that holds 1), or the factor by which it is slower; "" where not ranked."""
    if record.versus_best is None:
        return ""
    ratio, low, high = record.versus_best
    if ratio == low == high == 1.0:
        return "fastest"
    return "tie" if ratio < 1 or tied(ratio, low, high) else f"{ratio:.2f}x"


def only_compiled(record: Record) -> bool:
    """Was there nothing to run it on, but a compiler that took it?"""
    return record.status == "unavailable" and record.reason.startswith("compiled for")


def microseconds(interval: Interval | None, *, spread: bool = False) -> str:
    if interval is None:
        return ""
    text = f"{interval.median:.4g}" if interval.median < 1000 else f"{interval.median:.0f}"
    if spread:
        half = max(interval.high - interval.median, interval.median - interval.low)
        text += f" ±{100 * half / interval.median:.1f}%"
    return text + ("" if interval.converged else "*")


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def show(records: Sequence[Record], console: Console) -> None:
    """Prints one table an op, then the counts. Stand-in cells have a verdict and no times: a simulator's time means nothing."""
    first_calls = any(r.compile_cold_s is not None for r in records)
    for op, of_op in by_op(records):
        console.print(_table(op, of_op, timed=any(r.kernel_cold_us for r in of_op), first_calls=first_calls))
    if not records:
        return
    for line in summary(records):
        console.print(line)


def _table(op: str, records: Sequence[Record], *, timed: bool, first_calls: bool) -> Table:
    table = Table(
        title=f"{op}: {OPS[op].summary}" if op in OPS else escape(op),
        title_justify="left",
        title_style="bold",
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("implementation", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("error/bound", justify="right")
    if timed:
        for name in ("cold us", "SOL", "rank", "warm us", "launch us", "call us"):
            table.add_column(name, justify="right", no_wrap=True)
        if first_calls:
            table.add_column("first call s", justify="right")
    table.add_column("why", overflow="fold", max_width=60)
    for workload, group in grouped(in_order(records), lambda r: str(r.workload)):
        table.add_section()
        table.add_row(f"[bold]{escape(workload)}[/]")
        for r in _ranked(group):
            table.add_row(*_row(r, timed, first_calls))
    return table


def _row(r: Record, timed: bool, first_calls: bool) -> list[str]:
    mark = standing(r)
    name = f"  {escape(r.implementation)}"
    cells = [f"[bold]{name}[/]" if mark in ("fastest", "tie") else name, _verdict(r), ratio(r.error_ratio)]
    if timed:
        sol = "" if r.sol is None else f"{r.sol:.2f}"
        cells += [microseconds(r.kernel_cold_us, spread=True), sol, mark, microseconds(r.kernel_warm_us), microseconds(r.launch_us),
                  microseconds(r.call_us)]  # fmt: skip
        if first_calls:
            both = (r.compile_cold_s, r.compile_cached_s)
            cells.append("" if None in both else f"{both[0]:.1f} / {both[1]:.1f}")
    return [*cells, escape(r.reason)]


def _verdict(r: Record) -> str:
    text = r.status + (f" ({r.stand_in})" if r.stand_in and r.status == "ok" else "")
    return f"[{STYLES[r.status]}]{escape(text)}[/]"


def _ranked(group: Sequence[Record]) -> list[Record]:
    """Fastest first; what has no time after that, in the order it came."""
    return sorted(group, key=lambda r: r.kernel_cold_us.median if r.kernel_cold_us else float("inf"))


def summary(records: Sequence[Record]) -> list[str]:
    """One line of counts, and where times were taken, one line a backend: how often it is fastest or ties."""
    counts = {status: sum(r.status == status for r in records) for status in STYLES}
    lines = ["[bold]" + ", ".join(f"{n} {status}" for status, n in counts.items() if n) + "[/]"]
    ranked = [r for r in records if r.versus_best is not None]
    cells = len({str(r.workload) for r in ranked})
    first = [r for r in ranked if standing(r) in ("fastest", "tie")]
    for backend in dict.fromkeys(r.backend for r in ranked):
        own = len({str(r.workload) for r in first if r.backend == backend})
        lines.append(f"  {backend}: fastest or tied on {own} of {cells} workloads")
    return lines
