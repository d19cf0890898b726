"""A backend's known batch invariance at a workload, and the cost of choosing by it."""

from __future__ import annotations

from collections.abc import Mapping

from opwise.choosing.ranking import Standing
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.record import Record


def varying(cells: Mapping[tuple[int, ...], Record], workload: Workload) -> str:
    """Why a backend is not known to be batch-invariant, "" if it is; cells: its newest timed records by sizes. For an op without rows, a
    repeatable result suffices."""
    record = cells.get(OPS[workload.op].sizes(workload.shape))
    if record is None or not (record.bits or record.differs):
        return f"nobody has found out whether it is batch-invariant: opwise run {workload} --facts does"
    if record.batch_invariant or (record.batch_invariant is None and record.repeatable and not record.differs):
        return ""
    return f"not batch-invariant: {record.differs}"


def price(chosen: Standing, fastest: Standing) -> str:
    """A sentence on the cost, for Choice.why."""
    best = "fastest" if chosen.mj is None else "least"
    return f" Batch-invariant costs {max(chosen.counts / fastest.counts, 1.0):.2f} of the {best} here, {fastest.backend}."
