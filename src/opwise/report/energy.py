"""Joules for readers, from records that have them (`opwise run --energy`): columns of the tables, and time against energy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opwise.ops import OPS
from opwise.record import CAPPED, STATES, Record
from opwise.report.figures import Axis, Figure, Panel, Point, Series, named
from opwise.report.groups import grouped
from opwise.report.states import LABELS


def measured(records: Iterable[Record]) -> bool:
    """Returns whether the energy of any of them was measured."""
    return any(r.energised or r.energy_note for r in records)


def unit(op: str) -> str:
    """The divisor of a launch's energy: flops for a product, bytes for other ops."""
    return "flop" if op == "matmul" else "byte"


def pj_per(r: Record, joules: float | None) -> float | None:
    """pJ per useful flop or compulsory byte (OpSpec.cost); None without joules, and for an op that is not installed here."""
    if joules is None or r.op not in OPS:
        return None
    cost = OPS[r.op].cost(r.workload)
    work = cost.flops if unit(r.op) == "flop" else cost.bytes
    return 1e12 * joules / work if work else None


def told(value: float | None, scale: float = 1.0) -> str:
    return "" if value is None else f"{scale * value:.4g}"


def columns(op: str, records: Sequence[Record]) -> tuple[str, ...]:
    """Energy columns of an op's table: none without measurements, the power cap's only if it changes something."""
    if not measured(records):
        return ()
    capped = ("capped mJ",) if any(r.capped_joules is not None for r in records) else ()
    return ("mJ a launch", f"pJ/{unit(op)}", *capped, "idle W")


def cells(r: Record) -> dict[str, str]:
    """Cells in the order of `columns`."""
    return {
        "mJ a launch": told(r.joules, 1e3),
        f"pJ/{unit(r.op)}": told(pj_per(r, r.joules)),
        "capped mJ": told(r.capped_joules, 1e3),
        "idle W": "" if r.idle_w is None else f"{r.idle_w:.0f}",
    }


def energies(records: Sequence[Record]) -> Figure:
    """Time against energy, a point per workload, implementation and state."""
    caption = "Cold kernel time against the energy of a launch, a point a workload; below and to the left is better."
    if any(r.capped_joules is not None for r in records):
        caption += " Hollow: power-capped, or a variant."
    found = [r for r in records if r.status == "ok" and r.energised]
    series = [
        Series(f"{name}, {LABELS[state]}" if state == CAPPED else name, group[0].backend, points,
               hollow=bool(group[0].variant) or state == CAPPED, variant=bool(group[0].variant))
        for name, group in grouped(found, named) for state in reversed(STATES) if (points := _points(group, state))
    ]  # fmt: skip
    panels = (Panel("all ops", Axis("us", log=True), Axis("mJ", log=True), tuple(series)),) if series else ()
    return Figure("energy", "Time against energy", caption, panels, "No energy is on record: opwise run --energy on a GPU measures it.")


def _points(group: Sequence[Record], state: str) -> tuple[Point, ...]:
    """The power-capped ones are of what the cap changes."""
    found = []
    for r in group:
        joules = r.capped_joules if state == CAPPED else r.joules
        time = r.kernel_us(state)
        if joules is None or time is None:
            continue
        per = pj_per(r, joules)
        text = f"{r.workload}, {joules / time.median * 1e6:.0f} W" + (f", {per:.4g} pJ/{unit(r.op)}" if per is not None else "")
        found.append(Point(time.median, 1e3 * joules, text))
    return tuple(found)
