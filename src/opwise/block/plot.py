"""A block run as a picture: a panel a state of the clock, in it a bar a backend, the fastest on top, with the time of each op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwise.block.records import BASELINE, BlockRecord, Measured
from opwise.block.table import rows
from opwise.report import still

FULL = "at full clock, each block behind a rest"
POWER_CAP = "power cap"  # among BlockRecord.throttle
ROOM = 1.36  # of the longest bar, for what is said behind it
NARROWEST = 0.05  # of a bar, where a part has room for its own time


def write(records: Sequence[BlockRecord], path: Path) -> None:
    """Raises MissingExtra, OSError, and ValueError where nothing was timed."""
    states = [
        (told, bars) for told, bars in ((FULL, bars_of(records, full=True)), (back_to_back(records), bars_of(records, full=False))) if bars
    ]
    if not states:
        raise ValueError("no backend was timed: times need a GPU")
    with still.drawn(path, 0.9 + sum(0.4 + 0.46 * len(bars) for _, bars in states)) as figure:
        figure.suptitle("\n".join(title(records)), fontsize=8)
        every = figure.subplots(len(states), sharex=True, squeeze=False, height_ratios=[len(bars) for _, bars in states])[:, 0]
        for axes, (told, bars) in zip(every, states, strict=True):
            axes.set_title(told, fontsize=8, loc="left")
            _draw(axes, bars)
        every[-1].set_xlim(0, max(bar.us for _, bars in states for bar in bars) * ROOM)
        every[-1].set_xlabel("us a block")
        handles, labels = every[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)


@dataclass(frozen=True)
class Bar:
    """us of one block; `shares`: of them, by op."""

    name: str
    us: float
    shares: Mapping[str, float]
    behind: str


def bars_of(records: Sequence[BlockRecord], full: bool) -> list[Bar]:
    """The fastest first. full: of single blocks at full clock, none of a run from before these were timed; otherwise back to back."""
    found = [(r, r.measured(full)) for r, _ in rows(records, full)]
    return [
        Bar(_name(r, m, full), m.us.median, m.shares, _behind(r, m, m.us.median, full)) for r, m in found if m.us is not None and m.shares
    ]


def _draw(axes: Any, bars: Sequence[Bar]) -> None:
    at, left = range(len(bars)), [0.0 for _ in bars]
    parts = bars[0].shares
    for colour, part in zip((*still.COLOURS[: len(parts) - 1], still.GREY), parts, strict=False):
        widths = [bar.shares[part] * bar.us for bar in bars]
        axes.barh(at, widths, left=left, color=colour, label=part, height=0.62)
        for y, x, width, bar in zip(at, left, widths, bars, strict=True):
            if width > NARROWEST * bar.us:
                axes.text(x + width / 2, y, f"{width:.0f}", ha="center", va="center", color="white", fontsize=7)
        left = [x + width for x, width in zip(left, widths, strict=True)]
    for y, bar in zip(at, bars, strict=True):
        axes.text(bar.us * 1.02, y, bar.behind, va="center")
    axes.set_yticks(at, [bar.name for bar in bars])
    axes.invert_yaxis()


def title(records: Sequence[BlockRecord]) -> list[str]:
    """Which block; where, of which commit, when."""
    r, sizes = records[-1], str(records[-1].sizes)
    swapped = ", ".join(dict.fromkeys(op for each in records for op in each.ops))
    return [sizes.partition(" (")[0] + f", swapped: {swapped}", f"{r.device}, commit {r.commit or 'unknown'}, {r.time[:10]}"]


def back_to_back(records: Sequence[BlockRecord]) -> str:
    """The state of the clock in which the blocks ran back to back."""
    capped = all(POWER_CAP in each.throttle for each in records if each.block_us is not None)
    return "back to back, " + ("power-capped" if capped else "not power-capped throughout")


def _name(r: BlockRecord, m: Measured, full: bool) -> str:
    known = [(m.sm_clock_mhz, "{:.0f} MHz"), (None if full else r.power_w, "{:.0f} W")]
    return "\n".join([r.backend, ", ".join(form.format(value) for value, form in known if value is not None)])


def _behind(r: BlockRecord, m: Measured, us: float, full: bool) -> str:
    over = "" if m.versus_baseline is None or r.backend == BASELINE else f"\n{m.versus_baseline[0]:.3f} of torch's"
    joules = "" if full or r.joules is None else f", {r.joules:.2f} J"
    return f"{us:.0f} us{joules}{over}"
