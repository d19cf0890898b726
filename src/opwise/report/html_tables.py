"""The tables of the page, as text that the template escapes: facts, verdicts, and every cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from opwise import comparing
from opwise.choosing.spread import Across
from opwise.record import STATES, Interval, Record
from opwise.report import energy
from opwise.report.figures import named
from opwise.report.groups import by_op, grouped
from opwise.report.states import FIRST, both, standing, wins
from opwise.report.tables import ANSWERS, SETTLED, microseconds, ratio, share, speaks_of
from opwise.settling import apart, settled_of, states_of


def described(records: Sequence[Record], across: Across) -> dict[str, Any]:
    """The template's data of a run besides its figures. across: the stored runs' alike records."""
    backends = list(dict.fromkeys(r.backend for r in records))
    return {
        "facts": facts(records),
        "wins": wins(records),
        "capped": any(r.kernel_capped_us for r in records),
        "energy": energy.measured(records),
        "bits": any(r.bits or r.differs for r in records),
        "backends": backends,
        "verdicts": [
            (op, [list(Counter(r.status for r in group if r.backend == b).items()) for b in backends]) for op, group in by_op(records)
        ],
        "speaks_of": speaks_of(records) if any(r.timed for r in records) else "",
        "cells": [
            row for _, of_op in by_op(records) for _, group in grouped(of_op, lambda r: str(r.workload)) for row in _cells(group, across)
        ],
    }


def facts(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Machine and settings of the run, and its clocks, temperature and power."""
    r = records[-1]
    counts = Counter(x.status for x in records)
    found = [
        ("device", r.device),
        ("driver", r.driver or "none"),
        ("compute capability", r.capability),
        ("commit", (r.commit or "unknown") + (", changed since" if r.dirty else "")),
        ("taken", " to ".join(dict.fromkeys(time for time in (records[0].time, r.time) if time))),
        ("cells", ", ".join(f"{n} {status}" for status, n in counts.items())),
        ("stand-ins", ", ".join(sorted({x.stand_in for x in records if x.stand_in}))),
        ("versions", ", ".join(f"{name} {version}" for name, version in r.versions.items())),
        ("SM clock", _reach([x.sm_clock_mhz for x in records], "MHz")),
        ("temperature", _reach([x.temperature_c for x in records], "°C")),
        ("power", _reach([x.power_w for x in records], "W")),
        ("throttled by", ", ".join(sorted({reason for x in records for reason in x.throttle}))),
        ("power-capped: SM clock", _reach([x.capped_sm_clock_mhz for x in records], "MHz")),
        ("power-capped: power", _reach([x.capped_power_w for x in records], "W")),
        ("power-capped: throttled by", ", ".join(sorted({reason for x in records for reason in x.capped_throttle}))),
    ]
    return [(name, value) for name, value in found if value]


def _reach(values: Sequence[float | None], unit: str) -> str:
    found = [v for v in values if v is not None]
    return f"{min(found):.0f} to {max(found):.0f} {unit}" if found else ""


def compared(a: Sequence[Record], b: Sequence[Record]) -> dict[str, Any] | None:
    """For two runs: what is faster, slower or the same in the first, cold; None if they share no cell."""
    found = list(comparing.runs(a, b))
    devices = list(dict.fromkeys(device for c in found for device in (c.a_device, c.b_device)))
    rows = [
        {
            "workload": c.workload,
            "implementation": c.a,
            "times": [f"{c.a_us:.4g}", f"{c.b_us:.4g}", f"{c.ratio:.3f}", f"{c.low:.3f} to {c.high:.3f}"],
            "verdict": c.verdict,
        }
        for c in found
        if c.ratio is not None
    ]
    return {"counts": comparing.counted(found), "devices": devices, "rows": rows} if rows else None


def _cells(group: Sequence[Record], across: Across) -> Iterator[dict[str, Any]]:
    """A workload's rows."""
    settled = settled_of(group)
    best = {state: next((r for r in group if r.versus(state) == (1.0, 1.0, 1.0)), None) for state in STATES}
    for r in group:
        spread = across.spread(r, states_of([r]))
        near = any(b is not None and b is not r and not apart(across.ratios(r, b, (state,))) for state, b in best.items())
        told = ", ".join(filter(None, (str(spread or ""), "tie" if near and standing(r) not in FIRST else "")))
        yield _cell(r, r.implementation in settled) | {"across": told}


def _cell(r: Record, settled: bool) -> dict[str, Any]:
    rank = standing(r)
    return {
        "workload": str(r.workload),
        "implementation": named(r),
        "status": r.status,
        "stand_in": r.stand_in or "",
        "error": ratio(r.error_ratio),
        "cold": _spread(r.kernel_cold_us),
        "sol": share(r.sol),
        "capped": _spread(r.kernel_capped_us),
        "capped_sol": share(r.capped_sol),
        "clocks": both(r.sm_clock_mhz, r.capped_sm_clock_mhz, "{:.0f}"),
        "rank": rank + (SETTLED if settled else ""),
        "warm": microseconds(r.kernel_warm_us),
        "launch": microseconds(r.launch_us),
        "call": microseconds(r.call_us),
        "first": "" if r.compile_cold_s is None else f"{r.compile_cold_s:.3g} / {r.compile_cached_s or 0:.3g}",
        "repeatable": ANSWERS[r.repeatable],
        "batch_invariant": ANSWERS[r.batch_invariant],
        "differs": r.differs,
        "energy": [energy.told(r.joules, 1e3), _per(r), energy.told(r.capped_joules, 1e3), energy.cells(r)["idle W"], r.energy_note],
        "reason": r.reason,
        "best": "best" if rank in FIRST else "",
    }


def _per(r: Record) -> str:
    """With its unit: the table has all ops."""
    value = energy.pj_per(r, r.joules)
    return "" if value is None else f"{value:.4g} pJ/{energy.unit(r.op)}"


def _spread(interval: Interval | None) -> str:
    return microseconds(interval, spread=True) if interval and interval.median else ""
