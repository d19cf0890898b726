"""The figures of a run, from its records and its measured roofs only, so that an op that is not installed here is drawn as well.

If the power cap changes a time, its markers are hollow, and the lines of its limits are dotted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from opwise.ops import OPS
from opwise.record import CAPPED, FULL, STATES, Record
from opwise.report.figures import Axis, Figure, Panel, Point, Series, named, ticks
from opwise.report.groups import by_op, grouped, in_order
from opwise.report.states import FIRST, LABELS, Reading, differ, mark, ranked, readings, standing
from opwise.report.strips import costs, errors, first_calls

VARYING = 4.0  # an op whose flops per byte vary more than this between workloads has its size in flops, any other in bytes
IN_ONE = {state: f"first {label}" for state, label in LABELS.items()}


def figures(records: Sequence[Record], roofs: Mapping[str, float]) -> list[Figure]:
    records = in_order(records)
    return [
        winners(records),
        roofline(records, roofs),
        times(records),
        shares(records),
        costs(records),
        first_calls(records),
        errors(records),
    ]


# -- who wins ----------------------------------------------------------------------------------------------------------------


def winners(records: Sequence[Record]) -> Figure:
    caption = "Full marker: the fastest kernel, from a cold L2. Hollow: cannot be told from it (under 1 %, or within the interval)."
    if differ(_ranked(records)):
        caption += " Where the power cap changes the times, in both states; small: in one alone, full at full clock, hollow power-capped."
    return Figure("winners", "Winners", caption, tuple(_winners_of(op, group) for op, group in by_op(_ranked(records))), _untimed(records))


def _winners_of(op: str, records: Sequence[Record]) -> Panel:
    shapes = sorted({r.shape for r in records}, key=lambda shape: (math.prod(shape), shape), reverse=True)
    dtypes = list(dict.fromkeys(r.dtype for r in records))
    backends = list(dict.fromkeys(r.backend for r in records))
    series = []
    for backend in backends:
        offset = (backends.index(backend) - (len(backends) - 1) / 2) * 0.8 / len(backends)
        for kind, hollow in (("fastest", False), ("tie", True), (IN_ONE[FULL], False), (IN_ONE[CAPPED], True)):
            found = [r for r in records if r.backend == backend and _kind(r) == kind]
            points = [Point(dtypes.index(r.dtype) + offset, shapes.index(r.shape), _told(r)) for r in found]
            if points:
                series.append(Series(f"{backend}, {kind}", backend, tuple(points), hollow=hollow, large=kind in FIRST))
    return Panel(
        op, Axis("", ticks=ticks(dtypes)), Axis("", ticks=ticks(["x".join(map(str, s)) or "scalar" for s in shapes])), tuple(series)
    )


def _kind(r: Record) -> str:
    """As which of the winners it is drawn, if any."""
    if (rank := standing(r)) in FIRST:
        return rank
    return next((IN_ONE[x.state] for x in readings(r) if mark(x.versus) in FIRST), "")


def _told(r: Record) -> str:
    found = readings(r)
    return f"{r.workload} " + "; ".join(_at(x) + (f", {LABELS[x.state]}" if len(found) > 1 else "") for x in found)


def _at(x: Reading) -> str:
    ratio, low, high = x.versus or (1.0, 1.0, 1.0)
    paired = "" if mark(x.versus) in ("", "fastest") else f", {ratio:.3f} ({low:.3f} to {high:.3f}) of the fastest, paired"
    return f"at {x.cold.median:.4g} us{paired}"


# -- against the hardware ----------------------------------------------------------------------------------------------------


def roofline(records: Sequence[Record], roofs: Mapping[str, float]) -> Figure:
    caption = "Useful flops against flops per compulsory byte, cold; lines are the roofs measured on this GPU beside the run."
    if not roofs:
        caption = "Useful flops against flops per compulsory byte, cold. The run holds no measured roofs."
    if any(r.kernel_capped_us for r in _ranked(records)):
        caption += " Full markers and dashed peaks are at full clock, hollow markers and dotted peaks power-capped."
    panels = []
    for dtype, group in grouped([r for r in _ranked(records) if _work(r)], lambda r: r.dtype):
        series = _implementations(group, lambda r, x: [Point(_intensity(r), x.tflop_per_s, _performance(r, x))] if x.tflop_per_s else [])
        reach = sorted(p.x for s in series for p in s.points)
        if series:
            lines = _roof_lines(roofs, {_unit(r) for r in group}, reach[0], reach[-1])
            panels.append(
                Panel(
                    dtype,
                    Axis("flop per byte", log=True),
                    Axis("Tflop/s", log=True),
                    (*lines, *series),
                    note=", ".join(line.name for line in lines),
                )
            )
    return Figure("roofline", "Roofline", caption, tuple(panels), _untimed(records))


def _work(r: Record) -> tuple[float, float] | None:
    """Useful flops and compulsory bytes: from the rates and the time that the record holds, rounded, since both carry rounding errors;
    of a record without them from the op, where it is installed here."""
    if r.kernel_cold_us and r.tflop_per_s and r.gb_per_s:
        us = r.kernel_cold_us.median
        return float(round(r.tflop_per_s * us * 1e6)), float(round(r.gb_per_s * us * 1e3))
    if r.op not in OPS:
        return None
    cost = OPS[r.op].cost(r.workload)
    return (float(cost.flops), float(cost.bytes)) if cost.flops and cost.bytes else None


def _intensity(r: Record) -> float:
    flops, nbytes = _work(r) or (0.0, 1.0)
    return flops / nbytes


def _unit(r: Record) -> str:
    return OPS[r.op].cost(r.workload).unit if r.op in OPS else "fma"


def _performance(r: Record, x: Reading) -> str:
    sol = f", SOL {x.limit_us / x.cold.median:.2f}" if x.limit_us else ""
    return f"{r.workload}, {1e3 * (x.tflop_per_s or 0.0) / _intensity(r):.4g} GB/s{sol}"


def _roof_lines(roofs: Mapping[str, float], units: set[str], low: float, high: float) -> list[Series]:
    """The best bandwidths up to where they meet the highest peak, and the peaks of the units in use, of both states."""
    peaks, capped = (
        {u: roofs[name] for u in sorted(units) if (name := f"{state}peak_{u}_tflop_per_s") in roofs} for state in ("", "capped_")
    )
    lines = []
    low, high = low / 2, high * 2
    for kind in ("copy", "read"):
        speed = max((v for name, v in roofs.items() if name.startswith(f"{kind}_") and name.endswith("_gb_per_s")), default=None)
        if speed:
            end = min(high, 1e3 * max(peaks.values()) / speed) if peaks else high
            ends = tuple(Point(x, x * speed / 1e3) for x in (low, max(end, 1.001 * low)))
            lines.append(Series(f"{kind} {speed:.0f} GB/s", "", ends, joined=True))
    for found, state in ((peaks, ""), (capped, " power-capped")):
        for unit, peak in found.items():
            ends = tuple(Point(x, peak) for x in (low, high))
            lines.append(Series(f"{unit} {peak:.0f} Tflop/s{state}", "", ends, joined=True, hollow=bool(state)))
    return lines


# -- against size ------------------------------------------------------------------------------------------------------------


def times(records: Sequence[Record]) -> Figure:
    caption = "Cold kernel time with its 95 % interval (mostly narrower than the marker); the line without markers is the limit."
    panels = tuple(_against_size(records, _time, "us", log=True))
    return Figure("times", "Time against size", caption + _hollow(records), panels, _untimed(records))


def shares(records: Sequence[Record]) -> Figure:
    caption = "The same as a share of the limit (SOL), where the intervals can be seen: 1 is what this GPU's measured roofs allow."
    panels = tuple(_against_size(records, _share, "SOL", log=False))
    missing = _untimed(records) or "The run has no limits of the states that it was timed in."
    return Figure("shares", "Share of the limit against size", caption + _hollow(records), panels, missing)


def _hollow(records: Sequence[Record]) -> str:
    return " Hollow and dotted: power-capped, or a variant." if any(r.kernel_capped_us for r in _ranked(records)) else ""


def _time(x: Reading) -> tuple[float, float, float] | None:
    return x.cold.median, x.cold.low, x.cold.high


def _share(x: Reading) -> tuple[float, float, float] | None:
    """Of what has a limit."""
    return (x.limit_us / x.cold.median, x.limit_us / x.cold.high, x.limit_us / x.cold.low) if x.limit_us else None


def _against_size(
    records: Sequence[Record], value: Callable[[Reading], tuple[float, float, float] | None], unit: str, *, log: bool
) -> Iterable[Panel]:
    for op, of_op in by_op([r for r in _ranked(records) if _work(r)]):
        intensities = [_intensity(r) for r in of_op]
        in_flops = max(intensities) / min(intensities) > VARYING
        for dtype, group in grouped(of_op, lambda r: r.dtype):
            ordered = sorted(group, key=lambda r: (_size(r, in_flops), r.shape))

            def point(r: Record, x: Reading, in_flops: bool = in_flops) -> list[Point]:
                found = value(x)
                return [Point(_size(r, in_flops), found[0], str(r.workload), *found[1:])] if found else []

            series = _implementations(ordered, point, joined=True)
            axes = Axis("flop" if in_flops else "bytes", log=True), Axis(unit, log=log)
            if series:
                yield Panel(f"{op} {dtype}", *axes, (*_limits(ordered, in_flops, log), *series))


def _limits(ordered: Sequence[Record], in_flops: bool, log: bool) -> Iterable[Series]:
    """In us, of each state; as a share of itself, 1."""
    for state in STATES if log else STATES[:1]:
        found = [(_size(r, in_flops), x.limit_us) for r in ordered for x in readings(r) if x.limit_us and (x.state == state or not log)]
        points = tuple(Point(size, limit if log else 1.0) for size, limit in dict(found).items())
        if points:
            name = "limit" if state != CAPPED else f"limit, {LABELS[state]}"
            yield Series(name, "", points, joined=True, hollow=state == CAPPED)


def _size(r: Record, in_flops: bool) -> float:
    flops, nbytes = _work(r) or (0.0, 0.0)
    return flops if in_flops else nbytes


# ----------------------------------------------------------------------------------------------------------------------------


def _ranked(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if r.status == "ok" and ranked(r)]


def _untimed(records: Sequence[Record]) -> str:
    return "" if _ranked(records) else "Nothing was timed in this run: opwise run on a GPU times."


def _implementations(records: Sequence[Record], points: Callable[[Record, Reading], list[Point]], *, joined: bool = False) -> list[Series]:
    """One series an implementation and state; the power-capped ones first, so that the others lie upon them."""
    made = []
    for name, group in grouped(records, named):
        variant = bool(group[0].variant)
        for state in reversed(STATES):
            found = tuple(p for r in group for x in readings(r) if x.state == state for p in points(r, x))
            if found:
                told = f"{name}, {LABELS[state]}" if state == CAPPED else name
                made.append(Series(told, group[0].backend, found, joined=joined, hollow=variant or state == CAPPED, variant=variant))
    return made
