"""Tables of records for a terminal: one per op, implementations as rows, the fastest and its ties marked, in both states of the clock if
they differ."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from opwise.ops import OPS
from opwise.record import Interval, Record
from opwise.report import bits, energy
from opwise.report.groups import by_op, grouped, in_order
from opwise.report.states import FIRST, both, order_us, standing, wins
from opwise.settling import settled_of

STYLES = {"ok": "green", "wrong": "bold red", "failed": "bold red", "timeout": "bold red", "unsupported": "yellow", "unavailable": "dim"}
CAPPED_COLUMNS = ("capped us", "capped SOL", "SM MHz")
FACTS = ("repeatable", "batch-invariant")
SETTLED = ", settled"
ANSWERS = {True: "yes", False: "no", None: "-"}


def only_compiled(record: Record) -> bool:
    """Returns whether the cell was only compiled, with nothing to run it on."""
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


def share(sol: float | None) -> str:
    return "" if sol is None else f"{sol:.2f}"


def show(records: Sequence[Record], console: Console) -> None:
    """Prints one table per op, then the counts. Stand-in cells have a verdict and no times, which would mean nothing."""
    first_calls = any(r.compile_cold_s is not None for r in records)
    for op, of_op in by_op(records):
        console.print(_table(op, of_op, first_calls=first_calls))
    if not records:
        return
    if any(r.timed for r in records):
        console.print(f"± is {speaks_of(records)}", highlight=False)
    for line in summary(records):
        console.print(line)


def speaks_of(records: Sequence[Record]) -> str:
    """What the half-widths of these records describe, if it is the same for all."""
    counts = {r.processes for r in records if r.timed}
    if counts == {1}:
        return "the half-width of the 95 % interval within this run: one process"
    if len(counts) == 1:
        return f"the half-width of what the 95 % intervals of {counts.pop()} processes reach over"
    return f"the half-width of the 95 % intervals, of as many processes as each cell has: {min(counts)} to {max(counts)}"


def _table(op: str, records: Sequence[Record], *, first_calls: bool) -> Table:
    columns = _columns(records, first_calls)
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
    for name in columns:
        table.add_column(name, justify="right", no_wrap=name != "rank")  # it is long where the states differ
    table.add_column("why", overflow="fold", max_width=60)
    for workload, group in grouped(in_order(records), lambda r: str(r.workload)):
        table.add_section()
        table.add_row(f"[bold]{escape(workload)}[/]")
        settled = settled_of(group)
        for r in order_us(group):
            table.add_row(*_row(r, columns, r.implementation in settled))
    return table


def _columns(records: Sequence[Record], first_calls: bool) -> list[str]:
    """Those of an op's table between the error and the reason: none of what was not timed, the power cap's where it changes something."""
    if not any(r.timed for r in records):
        return []
    capped = any(r.kernel_capped_us for r in records)
    facts = any(r.bits or r.differs for r in records)
    return ["cold us", "SOL", *(CAPPED_COLUMNS if capped else ()), "rank", "warm us", "launch us", "call us",
            *(["first call s"] if first_calls else []), *(FACTS if facts else ()), *energy.columns(records[0].op, records)]  # fmt: skip


def _row(r: Record, columns: Sequence[str], settled: bool) -> list[str]:
    rank = standing(r)
    name = f"  {escape(r.implementation)}"
    first = (r.compile_cold_s, r.compile_cached_s)
    found = {
        "cold us": microseconds(r.kernel_cold_us, spread=True),
        "SOL": share(r.sol),
        "capped us": microseconds(r.kernel_capped_us, spread=True),
        "capped SOL": share(r.capped_sol),
        "SM MHz": both(r.sm_clock_mhz, r.capped_sm_clock_mhz, "{:.0f}"),
        "rank": rank + (SETTLED if settled else ""),
        "warm us": microseconds(r.kernel_warm_us),
        "launch us": microseconds(r.launch_us),
        "call us": microseconds(r.call_us),
        "repeatable": ANSWERS[r.repeatable],
        "batch-invariant": ANSWERS[r.batch_invariant],
        "first call s": "" if None in first else f"{first[0]:.1f} / {first[1]:.1f}",
        **energy.cells(r),
    }
    shown = [f"[bold]{name}[/]" if rank in FIRST else name, _verdict(r), ratio(r.error_ratio)]
    return [*shown, *(found[column] for column in columns), escape("; ".join(filter(None, (r.reason, r.differs, r.energy_note))))]


def _verdict(r: Record) -> str:
    text = r.status + (f" ({r.stand_in})" if r.stand_in and r.status == "ok" else "")
    return f"[{STYLES[r.status]}]{escape(text)}[/]"


def summary(records: Sequence[Record]) -> list[str]:
    """One line of counts and, with times, one line per backend: how often it is fastest or ties, in both states if they differ. Then the
    results of the bitwise tests."""
    counts = {status: sum(r.status == status for r in records) for status in STYLES}
    lines = ["[bold]" + ", ".join(f"{n} {status}" for status, n in counts.items() if n) + "[/]"]
    return (
        lines
        + [f"  {w.backend}: fastest or tied on {w.count} of {w.workloads} workloads{w.by_state}" for w in wins(records)]
        + bits.summary(records)
    )
