"""A block run as a picture: a bar a backend, the quickest on top, in it the time of each op."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opwise.block.records import BASELINE, BlockRecord
from opwise.block.table import rows
from opwise.report import still

POWER_CAP = "power cap"  # among BlockRecord.throttle
ROOM = 1.36  # of the longest bar, for what is said behind it
NARROWEST = 0.05  # of a bar, where a part has room for its own time


def write(records: Sequence[BlockRecord], path: Path) -> None:
    """Raises MissingExtra, OSError, and ValueError where nothing was timed."""
    timed = [(r, r.block_us.median) for r, _ in rows(records) if r.block_us is not None and r.shares]
    if not timed:
        raise ValueError("no backend was timed: times need a GPU")
    bars, parts = range(len(timed)), timed[0][0].shares
    with still.drawn(path, 1.3 + 0.46 * len(timed)) as figure:
        figure.suptitle("\n".join(title(records)), fontsize=8)
        axes = figure.add_subplot()
        left = [0.0 for _ in bars]
        for colour, part in zip((*still.COLOURS[: len(parts) - 1], still.GREY), parts, strict=False):
            widths = [r.shares[part] * us for r, us in timed]
            axes.barh(bars, widths, left=left, color=colour, label=part, height=0.62)
            for y, x, width, (_, us) in zip(bars, left, widths, timed, strict=True):
                if width > NARROWEST * us:
                    axes.text(x + width / 2, y, f"{width:.0f}", ha="center", va="center", color="white", fontsize=7)
            left = [x + width for x, width in zip(left, widths, strict=True)]
        for y, (r, us) in zip(bars, timed, strict=True):
            axes.text(us * 1.02, y, _behind(r, us), va="center")
        axes.set_yticks(bars, [_name(r) for r, _ in timed])
        axes.invert_yaxis()
        axes.set_xlim(0, max(us for _, us in timed) * ROOM)
        axes.set_xlabel("us a block")
        figure.legend(loc="outside lower center", ncols=len(parts), frameon=False)


def title(records: Sequence[BlockRecord]) -> list[str]:
    """Which block; where, in which state of the clock, of which commit, when."""
    r, sizes = records[-1], str(records[-1].sizes)
    swapped = ", ".join(dict.fromkeys(op for each in records for op in each.ops))
    capped = all(POWER_CAP in each.throttle for each in records if each.block_us is not None)
    state = "power-capped" if capped else "not power-capped throughout"
    return [
        sizes.partition(" (")[0] + f", swapped: {swapped}",
        f"{r.device}, back to back, {state}, commit {r.commit or 'unknown'}, {r.time[:10]}",
    ]


def _name(r: BlockRecord) -> str:
    known = [(r.sm_clock_mhz, "{:.0f} MHz"), (r.power_w, "{:.0f} W")]
    return "\n".join([r.backend, ", ".join(form.format(value) for value, form in known if value is not None)])


def _behind(r: BlockRecord, us: float) -> str:
    over = "" if r.versus_baseline is None or r.backend == BASELINE else f"\n{r.versus_baseline[0]:.3f} of torch's"
    joules = "" if r.joules is None else f", {r.joules:.2f} J"
    return f"{us:.0f} us{joules}{over}"
