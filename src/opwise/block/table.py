"""A block run as a table: for a terminal, in Markdown, and as text for the report's page."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from opwise.block.records import BASELINE, BlockRecord
from opwise.block.wiring import OPS_INSIDE
from opwise.measure.stats import tied
from opwise.report.tables import STYLES, microseconds, ratio

MEASURED = ("us a block", "over torch", "interval", "SM MHz")
POWER = ("W", "J a block")
FULL_TITLE = "at full clock: single blocks, each behind a flush of the L2 and a rest"


def columns(records: Sequence[BlockRecord], full: bool = False) -> list[str]:
    """The table's columns; those without any measured value are left out.

    full: of single blocks at full clock, none where nobody has such a time; otherwise of blocks back to back, with the verdicts."""
    timed = [*MEASURED, *(() if full else POWER), *OPS_INSIDE, "other"] if any(r.measured(full).us for r in records) else []
    return (["backend", *timed] if timed else []) if full else ["backend", "ops", "verdict", "error/bound", *timed]


def rows(records: Sequence[BlockRecord], full: bool = False) -> list[tuple[BlockRecord, list[str]]]:
    """Rows with the texts of `columns`: fastest first, then those without a time, in input order."""
    names = columns(records, full)
    ordered = sorted(records, key=lambda r: us.median if (us := r.measured(full).us) else float("inf"))
    return [(r, [cells[name] for name in names]) for r in ordered for cells in [_cells(r, full)]]


def _cells(r: BlockRecord, full: bool) -> dict[str, str]:
    measured = r.measured(full)
    us, over, shares = measured.us, measured.versus_baseline, measured.shares
    return {
        "backend": r.backend,
        "ops": ", ".join(r.ops),
        "verdict": r.status + (f" ({r.stand_in})" if r.stand_in and r.status == "ok" else ""),
        "error/bound": ratio(r.error_ratio),
        "us a block": microseconds(us, spread=True) if us else "",
        "over torch": "" if over is None else f"{over[0]:.3f}",
        "interval": "" if over is None or r.backend == BASELINE else f"{over[1]:.3f} to {over[2]:.3f}",
        "SM MHz": _whole(measured.sm_clock_mhz),
        "W": _whole(r.power_w),
        "J a block": "" if r.joules is None else f"{r.joules:.3f}",
        **{name: f"{shares[name]:.1%}" if name in shares else "" for name in (*OPS_INSIDE, "other")},
    }


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def title(records: Sequence[BlockRecord]) -> str:
    """The block, the device and the date."""
    r = records[-1]
    changed = ", changed since" if r.dirty else ""
    shared = f", on a GPU shared with {r.shared}" if r.shared else ""
    return f"{r.sizes}: {r.device}, driver {r.driver or 'none'}, commit {r.commit or 'unknown'}{changed}, {r.time}{shared}"


def table(records: Sequence[BlockRecord], full: bool = False) -> Table:
    """The table for a terminal. Bold: faster than the block of torch alone, by more than a tie."""
    shown = Table(title=FULL_TITLE if full else None, title_justify="left", show_edge=False, pad_edge=False)
    for name in columns(records, full):
        shown.add_column(name, justify="left" if name in ("backend", "ops", "verdict") else "right", no_wrap=name != "ops")
    for r, texts in rows(records, full):
        cells = [escape(text) for text in texts]
        cells[0] = f"[bold]{cells[0]}[/]" if ahead(r, full) else cells[0]
        if not full:
            cells[2] = f"[{STYLES.get(r.status, 'yellow')}]{cells[2]}[/]"
        shown.add_row(*cells)
    return shown


def steps(records: Sequence[BlockRecord]) -> Table:
    """us of each step in each block, which shows the op that makes the difference."""
    timed = [r for r, _ in rows(records) if r.steps_us]
    shown = Table(title="us of each step, between events", title_justify="left", show_edge=False, pad_edge=False)
    for name in ("step", "workload", *(r.backend for r in timed)):
        shown.add_column(escape(name), justify="left" if name in ("step", "workload") else "right", no_wrap=True)
    workloads = timed[0].sizes.workloads
    for name in timed[0].steps_us:
        shown.add_row(name, str(workloads.get(name, "torch's")), *(f"{r.steps_us.get(name, float('nan')):.1f}" for r in timed))
    return shown


def ahead(r: BlockRecord, full: bool = False) -> bool:
    """Returns whether it is faster than the block of torch alone, and not tied with it."""
    over = r.measured(full).versus_baseline
    return over is not None and over[0] < 1 and not tied(*over)


def notes(records: Sequence[BlockRecord]) -> list[str]:
    """One line per reason."""
    return [f"{r.status}  {r.backend}: {r.reason}" for r in records if r.reason]


def markdown(records: Sequence[BlockRecord]) -> str:
    """The same tables, bold as in `table`."""
    full = [FULL_TITLE, _markdown(records, True)] if columns(records, True) else []
    return "\n\n".join([_markdown(records, False), *full])


def _markdown(records: Sequence[BlockRecord], full: bool) -> str:
    names = columns(records, full)
    lines = [names, ["---" if name in ("backend", "ops", "verdict") else "---:" for name in names]]
    lines += [[f"**{texts[0]}**" if ahead(r, full) else texts[0], *texts[1:]] for r, texts in rows(records, full)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
