"""Energies for `choose --for energy`: mJ of a launch, as `opwise run --energy` measured them at exactly that workload; never
interpolated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opwise import clocks
from opwise.choosing.store import refresh
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.record import CAPPED, FULL, STATES, Record

ENERGY = "energy"
TIE = 0.05  # what two processes agree within


def measures(workload: Workload) -> str:
    """The command that measures the energy."""
    return f"{refresh([workload])} --energy"


def known_states(cells: Mapping[tuple[int, ...], Record], workload: Workload) -> tuple[str, ...]:
    """The states of record.STATES in which a backend's energy is known at a workload; cells: its newest timed records by sizes."""
    r = cells.get(OPS[workload.op].sizes(workload.shape))
    return tuple(s for s in STATES if r is not None and r.energy_j(s) is not None and r.kernel_us(s) is not None)


def unmeasured(cells: Mapping[tuple[int, ...], Record], workload: Workload) -> str:
    """Why a backend's energy is unknown at a workload."""
    r = cells.get(OPS[workload.op].sizes(workload.shape))
    if r is not None and r.energy_note:
        return r.energy_note
    return f"nobody has measured its energy: {measures(workload)} does"


def millijoules(record: Record, states: Sequence[str]) -> dict[str, Any]:
    """Energy fields of a Standing: mJ over these states, in all of which the record has joules, and in each state that it has."""
    full, capped = (None if (j := record.energy_j(state)) is None else 1e3 * j for state in (FULL, CAPPED))
    counted = [1e3 * j for state in states if (j := record.energy_j(state)) is not None]
    return {"mj": clocks.mean([(mj, mj, mj) for mj in counted])[0], "full_mj": full, "capped_mj": capped}
