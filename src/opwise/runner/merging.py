"""One record from several processes' records of a cell: medians of their medians, intervals that contain all of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opwise import clocks
from opwise.measure.stats import median
from opwise.record import CAPPED, FULL, Interval, Record

Cells = Mapping[str, Sequence[Record]]  # implementation -> its records, a process each
Triple = tuple[float, float, float]


def merged(cells: Cells, count: int) -> list[Record]:
    """A job's records, one per implementation. If it is not ok in a process, that process's record counts, with the number of processes in
    which it was right. The ratios of all others are to the implementation with the least time over all `count` processes."""
    right = {name: of for name, of in cells.items() if len(of) == count and all(r.status == "ok" for r in of)}
    found = {name: _merged(of) for name, of in right.items()}
    for state, field in ((FULL, "versus_best"), (CAPPED, "capped_versus_best")):
        timed = {name: time.median for name, r in found.items() if (time := _own(r, state)) is not None}
        if timed:
            best = min(timed, key=lambda name: timed[name])
            for name in timed:
                versus: Any = {field: (1.0, 1.0, 1.0) if name == best else _versus(right[name], right[best], state)}
                found[name] = replace(found[name], **versus)
    return [found[name] if name in found else _told(of) for name, of in cells.items()]


def _told(of: Sequence[Record]) -> Record:
    """Of what is not ok in the last process that tried it."""
    before = len(of) - 1
    return (
        replace(of[-1], reason=f"ok in {before} {'process' if before == 1 else 'processes'} before: {of[-1].reason}") if before else of[-1]
    )


def _own(r: Record, state: str) -> Interval | None:
    return r.kernel_cold_us if state == FULL else r.kernel_capped_us


def _versus(of: Sequence[Record], best: Sequence[Record], state: str) -> Triple | None:
    ratios = [clocks.paired(one, other, (state,)) for one, other in zip(of, best, strict=True)]
    known = [r for r in ratios if r is not None]
    if not known or any(r is None and a.kernel_us(state) is not None for r, a in zip(ratios, of, strict=True)):
        return None
    return median([r[0] for r in known]), min(r[1] for r in known), max(r[2] for r in known)


def _merged(of: Sequence[Record]) -> Record:
    """Without ratios to the fastest. The power-capped state is there where it is in any process: in one whose times the cap does not change
    they are the same in both."""
    states = (FULL, CAPPED) if any(r.kernel_capped_us for r in of) else (FULL,) if any(r.timed for r in of) else ()
    fields = {name: _known(made, (getattr(r, name) for r in of)) for made, names in MADE.items() for name in names}
    fields["kernel_capped_us"] = _known(_interval, (r.kernel_us(CAPPED) for r in of)) if CAPPED in states else None
    full, capped = (time.median if (time := fields[name]) else None for name in ("kernel_cold_us", "kernel_capped_us"))
    return replace(
        of[0],
        **fields,
        reason=_listed(r.reason for r in of),
        time=of[-1].time,
        processes=len(of),
        us_by_process={s: tuple(time.median if time else None for time in (r.kernel_us(s) for r in of)) for s in states},
        versus_by_process={s: tuple(r.versus(s) for r in of) for s in states},
        sol=_share(fields["limit_us"], full),
        capped_sol=_share(fields["capped_limit_us"], capped),
        gb_per_s=_rate(((r.gb_per_s, r.kernel_cold_us) for r in of), full),
        tflop_per_s=_rate(((r.tflop_per_s, r.kernel_cold_us) for r in of), full),
        capped_tflop_per_s=_rate(((r.capped_tflop_per_s, r.kernel_capped_us) for r in of), capped),
    )


def _interval(times: Sequence[Interval]) -> Interval:
    return Interval(median([t.median for t in times]), min(t.low for t in times), max(t.high for t in times), sum(t.samples for t in times),
                    times[0].method, all(t.converged for t in times), _listed(t.note for t in times))  # fmt: skip


def _union(found: Sequence[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in found for name in names))


MADE: Mapping[Callable[[Any], Any], Sequence[str]] = {  # how a field is made of those that are not None -> its fields
    _interval: ("kernel_cold_us", "kernel_warm_us", "launch_us", "call_us"),
    median: ("sm_clock_mhz", "capped_sm_clock_mhz", "power_w", "capped_power_w"),
    max: ("error_ratio", "disagreement", "rest_us", "temperature_c", "extra_bytes"),
    min: ("limit_us", "capped_limit_us"),  # by the best of the roofs
    _union: ("throttle", "capped_throttle"),
}


def _known(made: Callable[[Any], Any], values: Iterable[Any]) -> Any:
    known = [v for v in values if v is not None]
    return made(known) if known else None


def _listed(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, texts)))


def _share(limit_us: float | None, us: float | None) -> float | None:
    return limit_us / us if limit_us is not None and us else None


def _rate(found: Iterable[tuple[float | None, Interval | None]], us: float | None) -> float | None:
    """Work over the merged time; the work is what a process's rate and time say."""
    work = next((rate * time.median for rate, time in found if rate is not None and time is not None), None)
    return work / us if work is not None and us else None
