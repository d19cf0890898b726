"""Measures sheets and stores tables: compiles everything first, on all cores, then measures workload after workload.

A row is stored as soon as its workload is done, so stopping keeps finished rows. The rule for unmeasured sizes is derived at the end of a
table from all its rows, including older ones with the same kernels, libraries and driver."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from opwise import clocks
from opwise.backends import tuned_table
from opwise.backends.tuned_table import TUNABLE, Row, Table, Time, TornTable, misfit
from opwise.measure.timing import tied
from opwise.ops import OPS
from opwise.record import BAD, Record
from opwise.runner.jobs import Job
from opwise.runner.seat import JobLost, Seat, marked
from opwise.scaling.compiling import compile_all
from opwise.scaling.order import estimate_s
from opwise.tuning import bench
from opwise.tuning.nearby import elsewhere
from opwise.tuning.planning import Sheet
from opwise.tuning.standing import Facts
from opwise.tuning.ways import ways


@dataclass(frozen=True)
class Happened:
    """`text`: current step. `seconds`: elapsed part of the expected time. `row`: a workload's result; `lost`: why there is none; `table`: a
    finished table, at `path`."""

    text: str = ""
    seconds: float = 0.0
    row: Row | None = None
    lost: str = ""
    table: Table | None = None
    path: Path | None = None


def carried_out(sheets: Sequence[Sheet], facts: Facts, device: str, root: Path) -> Generator[Happened, None, None]:
    """Measures and stores. `facts`: the Record fields of the device. Closing the iterator ends the workers."""
    setup = partial(bench.install, tuple(sheet.stand for sheet in sheets))
    seat = Seat(device, setup=setup, facts=facts)
    try:
        yield from compiled(sheets, seat, device, setup)
        for sheet in sheets:
            yield from _measured(sheet, seat, facts, root)
        seat.close()
    finally:
        seat.kill()


def compiled(sheets: Sequence[Sheet], seat: Seat, device: str, setup: partial[None]) -> Iterator[Happened]:
    """All kernels of the sheets, on all cores."""
    units = [unit for sheet in sheets for unit in sheet.builds]
    yield Happened(f"compiling {len(units)} kernels")
    each_s, before = sum(s.compiling_s for s in sheets) / max(1, len(units)), 0
    for built in compile_all([seat], lambda _: Seat(device, setup=setup), units):
        told = f"compiled {built.done} of {built.total} kernels, {built.seconds:.0f} s{built.waits}"
        yield Happened(told, each_s * (built.done - before))
        before = built.done


def _measured(sheet: Sheet, seat: Seat, facts: Facts, root: Path) -> Iterator[Happened]:
    table = begun(sheet, facts, root)
    rows = 0
    for job in sheet.jobs:
        records: list[Record] = []
        try:
            for event in seat.run(job):
                if event.turn is not None:
                    yield Happened(f"{job.workload} {event.turn[0].partition(':')[2]} {event.turn[1]}")
                records += event.records
        except JobLost as lost:
            records += marked(lost.job, lost.job.implementations, lost.lost, seat.facts)
        row, why = row_of(job, records, sheet.shipped[str(job.workload)])
        if row is not None:
            table, rows = table.with_row(row), rows + 1
            tuned_table.write(table, root)
        yield Happened(str(job.workload), estimate_s(job), row, why)
    if rows:
        table = replace(table, elsewhere=elsewhere(table.rows) if ways(TUNABLE[table.name]).nearest else {})
        yield Happened(f"{table.name} is done", table=table, path=tuned_table.write(table, root))


def begun(sheet: Sheet, facts: Facts, root: Path) -> Table:
    """The stored table, if it is valid for these kernels, libraries and driver; else an empty one, whose first row replaces it."""
    known = TUNABLE[sheet.table]
    device, driver = str(facts["device"]), str(facts.get("driver") or "")
    empty = Table(known.name, device, str(facts.get("capability") or ""), driver, tuned_table.versions_of(known, facts), known.source,
                  sheet.stand.through, str(facts.get("commit") or ""), facts.get("dirty"))  # fmt: skip
    try:
        before = tuned_table.read(tuned_table.path_of(root, known.name, device))
    except (TornTable, OSError):
        return empty
    return empty if misfit(before, {**facts, "driver": driver}) else replace(empty, rows=before.rows, elsewhere=before.elsewhere)


def row_of(job: Job, records: Sequence[Record], shipped: str) -> tuple[Row | None, str]:
    """The row of a workload, or None and why: there must be a right and timed shipped choice to compare with."""
    timed = {r.variant: r for r in records if r.status == "ok" and r.timed}
    refused = {r.variant: f"{r.status}: {r.reason}" for r in records if r.variant not in timed}
    if shipped not in timed:
        return None, f"{job.workload}: the shipped choice {shipped} has no time: {refused.get(shipped) or 'it was not measured'}"
    states = clocks.common(timed.values())
    times = {name: _time(r, states) for name, r in timed.items()}
    newest = records[-1]
    row = Row(str(job.workload), OPS[job.workload.op].sizes(job.workload.shape), chosen(timed, shipped), shipped, times, refused,
              newest.sm_clock_mhz, newest.gpu, newest.time)  # fmt: skip
    return row, ""


def _time(r: Record, states: Sequence[str]) -> Time:
    us, low, high = clocks.kernel(r, states)
    return Time(round(us, 4), round(low, 4), round(high, 4), r.error_ratio or 0.0)


def chosen(timed: dict[str, Record], shipped: str) -> str:
    """The fastest by the geometric mean of both states of the clock, unless the shipped choice ties with it by the paired rounds, as in
    every ranking."""
    states = clocks.common(timed.values())
    best = min(timed, key=lambda name: clocks.kernel(timed[name], states)[0])
    versus = clocks.paired(timed[shipped], timed[best], states)
    return shipped if versus is None or tied(*versus) else best


def wrong(row: Row) -> dict[str, str]:
    """Configurations that are wrong or failed, whose kernels need attention."""
    return {name: why for name, why in row.refused.items() if why.startswith(BAD)}
