"""Block runs on the page: the time of a transformer block with each backend's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opwise.block import table
from opwise.block.records import BlockRecord
from opwise.report.figures import Axis, Figure, Panel, Point, Series, ticks

NAME, TITLE = "inside", "Inside a model"
CAPTION = (
    "A transformer's block, again and again in a CUDA graph, with each backend's kernels for the ops that it has and torch's for the rest. "
    "All take turns on the same buffers."
)


def figure(runs: Sequence[Sequence[BlockRecord]]) -> Figure:
    """A panel per block run: us of a block with its interval, a point per backend."""
    panels = tuple(_panel(records) for records in runs if any(r.block_us for r in records))
    return Figure(NAME, TITLE, CAPTION, panels, "" if panels else "No block was timed on this device: opwise block on a GPU does.")


def _panel(records: Sequence[BlockRecord]) -> Panel:
    timed = [(r, r.block_us) for r in records if r.block_us is not None]
    series = [
        Series(r.backend, r.backend, (Point(i, us.median, _told(r), us.low, us.high),), large=True) for i, (r, us) in enumerate(timed)
    ]
    return Panel(_called(records), Axis("", ticks=ticks([r.backend for r, _ in timed])), Axis("us a block"), tuple(series))


def _called(records: Sequence[BlockRecord]) -> str:
    r = records[0]
    return f"{r.model}, {r.tokens} tokens: {', '.join(dict.fromkeys(op for r in records for op in r.ops))}"


def _told(r: BlockRecord) -> str:
    over = f", {r.versus_baseline[0]:.3f} of torch alone" if r.versus_baseline else ""
    return f"{r.backend}{over}" + (f", {r.sm_clock_mhz:.0f} MHz" if r.sm_clock_mhz else "") + (f", {r.power_w:.0f} W" if r.power_w else "")


def tables(runs: Sequence[Sequence[BlockRecord]]) -> list[dict[str, Any]]:
    """The template's data of each block run."""
    return [
        {
            "title": table.FULL_TITLE if full else table.title(records),
            "columns": table.columns(records, full),
            "rows": [{"texts": texts, "ahead": table.ahead(r, full), "status": r.status} for r, texts in table.rows(records, full)],
            "notes": [] if full else table.notes(records),
        }
        for records in runs
        for full in (False, True)
        if table.columns(records, full)
    ]
