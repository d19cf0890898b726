"""Results of `opwise run --facts`, counted, and the cost of batch invariance: lines under the tables and a figure of the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import geometric_mean

from opwise.clocks import TOLD
from opwise.ops.spec import Workload
from opwise.record import FULL, STATES, Record
from opwise.report.figures import Axis, Figure, Panel, Point, Series, named
from opwise.report.groups import by_op, grouped

NEAR = 1.1  # times the backend's own fastest: what more costs is counted


def summary(records: Iterable[Record]) -> list[str]:
    """For each op how often results were repeatable and batch-invariant, and the cost of each variant that is meant to be. None if nothing
    was tested."""
    asked = [r for r in records if r.bits or r.differs]
    lines = []
    for op, group in by_op(asked):
        known = [r for r in group if r.repeatable is not None]
        text = f"  {op}, bit by bit: repeatable in {sum(bool(r.repeatable) for r in known)} of {len(group)} cells"
        rows = grouped([r for r in known if r.batch_invariant is not None], named)
        text += "; batch-invariant: " * bool(rows)
        text += ", ".join(f"{name} {sum(bool(r.batch_invariant) for r in of_one)} of {len(of_one)}" for name, of_one in rows)
        lines += [text, *_costs(group)]
    return lines


def _costs(group: Sequence[Record]) -> Iterator[str]:
    whole = own(group)
    for _, of_one in grouped([r for r in group if r.variant], named):
        by_state = {state: [ratio for r in of_one if (ratio := price(r, whole, state))] for state in STATES}
        if not by_state[FULL]:
            continue
        means = [f"{geometric_mean(ratios):.3f} {TOLD[state]}" for state, ratios in by_state.items()]
        count, over = len(by_state[FULL]), sum(ratio > NEAR for ratio in by_state[FULL])
        yield (f"  {of_one[0].implementation} takes {' and '.join(means)} of its backend's time (geometric mean of {count} workloads), "
               f"more than {NEAR:.2f} at {over}")  # fmt: skip


Own = Mapping[tuple[str, Workload], Record]


def own(records: Iterable[Record]) -> Own:
    """Backend and workload -> the unnamed variant's record."""
    return {(r.backend, r.workload): r for r in records if not r.variant}


def price(variant: Record, whole: Own, state: str) -> float | None:
    """A variant's time over that of its backend's unnamed one at the same workload; None if either is unknown."""
    other = whole.get((variant.backend, variant.workload))
    mine, its = variant.kernel_us(state), other.kernel_us(state) if other else None
    return mine.median / its.median if mine and its else None


def prices(records: Sequence[Record]) -> Figure:
    """A panel per op and dtype, a point per workload and backend."""
    panels = []
    for op, group in by_op(records):
        for dtype, of_one in grouped([r for r in group if r.batch_invariant is not None], lambda r: r.dtype):
            variants, whole = grouped([r for r in of_one if r.variant], named), own(of_one)
            series = [Series(name, rows[0].backend, found) for name, rows in variants if (found := tuple(_points(rows, whole)))]
            if series:
                title = f"{op}, {dtype}"
                panels.append(Panel(title, Axis("us", log=True), Axis("times its backend's own time"), tuple(series)))
    caption = (
        "What a batch-invariant product costs: the variant's cold time at full clock over that of its backend's unnamed one, by its time."
    )
    return Figure("invariant", "What batch invariance costs", caption, tuple(panels), "opwise run matmul --facts on a GPU measures it.")


def _points(rows: Sequence[Record], whole: Own) -> Iterator[Point]:
    for r in rows:
        ratio, time = price(r, whole, FULL), r.kernel_us(FULL)
        if ratio and time:
            yield Point(time.median, ratio, str(r.workload))
