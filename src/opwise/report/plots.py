"""The figures of a run, made from its records and its measured roofs alone: an op that is not installed here is drawn as well."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from opwise.ops import OPS
from opwise.record import Interval, Record
from opwise.report.figures import Axis, Figure, Panel, Point, Series, named, ticks
from opwise.report.groups import by_op, grouped, in_order
from opwise.report.strips import costs, errors, first_calls
from opwise.report.tables import standing

VARYING = 4.0  # an op whose flops per byte vary more than this between workloads has its size in flops, any other in bytes


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
    title, caption = (
        "Winners",
        "Full marker: the fastest kernel, from a cold L2. Hollow: cannot be told from it (under 1 %, or within the interval).",
    )
    return Figure("winners", title, caption, tuple(_winners_of(op, group) for op, group in by_op(_ranked(records))), _untimed(records))


def _winners_of(op: str, records: Sequence[Record]) -> Panel:
    shapes = sorted({r.shape for r in records}, key=lambda shape: (math.prod(shape), shape), reverse=True)
    dtypes = list(dict.fromkeys(r.dtype for r in records))
    backends = list(dict.fromkeys(r.backend for r in records))
    series = []
    for backend in backends:
        offset = (backends.index(backend) - (len(backends) - 1) / 2) * 0.8 / len(backends)
        for mark, hollow in (("fastest", False), ("tie", True)):
            found = [r for r in records if r.backend == backend and standing(r) == mark]
            points = [Point(dtypes.index(r.dtype) + offset, shapes.index(r.shape), _told(r)) for r in found]
            if points:
                series.append(Series(f"{backend}, {mark}", backend, tuple(points), hollow=hollow, large=True))
    return Panel(
        op, Axis("", ticks=ticks(dtypes)), Axis("", ticks=ticks(["x".join(map(str, s)) or "scalar" for s in shapes])), tuple(series)
    )


def _told(r: Record) -> str:
    ratio, low, high = r.versus_best or (1.0, 1.0, 1.0)
    paired = "" if standing(r) == "fastest" else f", {ratio:.3f} ({low:.3f} to {high:.3f}) of the fastest, paired"
    cold = f" at {r.kernel_cold_us.median:.4g} us" if r.kernel_cold_us else ""
    return f"{r.workload}{cold}{paired}"


# -- against the hardware ----------------------------------------------------------------------------------------------------


def roofline(records: Sequence[Record], roofs: Mapping[str, float]) -> Figure:
    caption = "Useful flops against flops per compulsory byte, cold; lines are the roofs measured on this GPU beside the run."
    if not roofs:
        caption = "Useful flops against flops per compulsory byte, cold. The run holds no measured roofs."
    panels = []
    for dtype, group in grouped(_ranked(records), lambda r: r.dtype):
        placed = [r for r in group if r.gb_per_s and r.tflop_per_s]
        series = _implementations(placed, lambda r: [Point(_intensity(r), r.tflop_per_s or 0.0, _performance(r))])
        reach = sorted(_intensity(r) for r in placed)
        if series:
            lines = _roof_lines(roofs, {_unit(r) for r in placed}, reach[0], reach[-1])
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


def _intensity(r: Record) -> float:
    return 1e3 * (r.tflop_per_s or 0.0) / (r.gb_per_s or 1.0)


def _unit(r: Record) -> str:
    return OPS[r.op].cost(r.workload).unit if r.op in OPS else "fma"


def _performance(r: Record) -> str:
    return f"{r.workload}, {r.gb_per_s:.4g} GB/s, SOL {r.sol or 0:.2f}"


def _roof_lines(roofs: Mapping[str, float], units: set[str], low: float, high: float) -> list[Series]:
    """The best bandwidths up to where they meet the highest peak, and the peaks of the units in use."""
    peaks = {u: roofs[name] for u in sorted(units) if (name := f"peak_{u}_tflop_per_s") in roofs}
    lines = []
    low, high = low / 2, high * 2
    for kind in ("copy", "read"):
        speed = max((v for name, v in roofs.items() if name.startswith(f"{kind}_") and name.endswith("_gb_per_s")), default=None)
        if speed:
            end = min(high, 1e3 * max(peaks.values()) / speed) if peaks else high
            ends = tuple(Point(x, x * speed / 1e3) for x in (low, max(end, 1.001 * low)))
            lines.append(Series(f"{kind} {speed:.0f} GB/s", "", ends, joined=True))
    for unit, peak in peaks.items():
        ends = tuple(Point(x, peak) for x in (low, high))
        lines.append(Series(f"{unit} {peak:.0f} Tflop/s", "", ends, joined=True))
    return lines


# -- against size ------------------------------------------------------------------------------------------------------------


def times(records: Sequence[Record]) -> Figure:
    caption = "Cold kernel time with its 95 % interval (mostly narrower than the marker); the line without markers is the limit."
    return Figure("times", "Time against size", caption, tuple(_against_size(records, _time, "us", log=True)), _untimed(records))


def shares(records: Sequence[Record]) -> Figure:
    caption = "The same as a share of the limit (SOL), where the intervals can be seen: 1 is what this GPU's measured roofs allow."
    return Figure(
        "shares", "Share of the limit against size", caption, tuple(_against_size(records, _share, "SOL", log=False)), _untimed(records)
    )


def _time(r: Record) -> tuple[float, float, float]:
    cold = r.kernel_cold_us or Interval(0, 0, 0, 0)
    return cold.median, cold.low, cold.high


def _share(r: Record) -> tuple[float, float, float]:
    median, low, high = _time(r)
    limit = r.limit_us or math.nan
    return limit / median, limit / high, limit / low


def _against_size(
    records: Sequence[Record], value: Callable[[Record], tuple[float, float, float]], unit: str, *, log: bool
) -> Iterable[Panel]:
    for op, of_op in by_op([r for r in _ranked(records) if r.limit_us]):
        intensities = [_intensity(r) for r in of_op]
        in_flops = min(intensities) > 0 and max(intensities) / min(intensities) > VARYING
        for dtype, group in grouped(of_op, lambda r: r.dtype):
            ordered = sorted(group, key=lambda r: (_size(r, in_flops), r.shape))

            def point(r: Record, in_flops: bool = in_flops) -> list[Point]:
                middle, low, high = value(r)
                return [Point(_size(r, in_flops), middle, str(r.workload), low, high)]

            at = {_size(r, in_flops): (r.limit_us or 0.0 if log else 1.0) for r in ordered}
            limit = Series("limit", "", tuple(Point(x, y) for x, y in at.items()), joined=True)
            axes = Axis("flop" if in_flops else "bytes", log=True), Axis(unit, log=log)
            yield Panel(f"{op} {dtype}", *axes, (limit, *_implementations(ordered, point, joined=True)))


def _size(r: Record, in_flops: bool) -> float:
    """Compulsory work, from the rate and the time that the record holds; rounded, since both carry rounding errors."""
    cold = r.kernel_cold_us.median if r.kernel_cold_us else 0.0
    return float(round((r.tflop_per_s or 0.0) * cold * 1e6 if in_flops else (r.gb_per_s or 0.0) * cold * 1e3))


# ----------------------------------------------------------------------------------------------------------------------------


def _ranked(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if r.status == "ok" and r.kernel_cold_us is not None and r.versus_best is not None]


def _untimed(records: Sequence[Record]) -> str:
    return "" if _ranked(records) else "Nothing was timed in this run: opwise run on a GPU times."


def _implementations(records: Sequence[Record], points: Callable[[Record], list[Point]], *, joined: bool = False) -> list[Series]:
    return [
        Series(
            name,
            group[0].backend,
            tuple(p for r in group for p in points(r)),
            joined=joined,
            hollow=bool(group[0].variant),
            variant=bool(group[0].variant),
        )
        for name, group in grouped(records, named)
    ]
