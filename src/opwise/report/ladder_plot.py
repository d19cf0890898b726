"""Ladders as a picture: a panel a ladder, a line a rung, in it a mark a workload at its cold kernel time."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opwise.record import CAPPED, FULL, Record
from opwise.report import still
from opwise.report.ladders import LADDERS, Cells, Ladder, cells, newest, told
from opwise.report.states import LABELS, readings

ROOM = 7.0  # times the slowest time, for what is said behind its mark
BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # a text covers the line of a limit


def whole(records: Sequence[Record], name: str | None = None) -> list[Ladder]:
    """Those that a run has with every rung, or the one of that name. Raises ValueError where there are none."""
    had = [ladder for ladder in LADDERS if newest(ladder, [records])]
    wanted = [ladder for ladder in had if name in (None, ladder.name)]
    if not wanted:
        asked, there = f" of {name}" if name else "", ", ".join(ladder.name for ladder in had) or "none"
        raise ValueError(f"the run has no whole ladder{asked}: of {', '.join(x.name for x in LADDERS)} it has {there}")
    return wanted


def write(records: Sequence[Record], ladders: Sequence[Ladder], path: Path) -> None:
    """Raises MissingExtra, OSError."""
    known = cells(records)
    heights = [0.9 + 0.2 * len(ladder.rungs) * len(ladder.workloads) for ladder in ladders]
    with still.drawn(path, sum(heights) + 0.7) as figure:
        line = importlib.import_module("matplotlib.lines").Line2D
        r = records[-1]
        figure.suptitle(f"{r.device}, cold L2, commit {r.commit or 'unknown'}, {r.time[:10]}", fontsize=8)
        panels = figure.subplots(len(ladders), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, ladder in zip(panels, ladders, strict=True):
            _panel(axes, ladder, known)
        marks = [line([], [], ls="", marker="o", color="black", mfc=_fill(state, "black"), label=LABELS[state]) for state in (FULL, CAPPED)]
        limit = line([], [], color="black", ls="--", lw=0.9, label="limit at full clock")
        figure.legend(handles=[*marks, limit], loc="outside lower center", ncols=3, frameon=False)


def _panel(axes: Any, ladder: Ladder, known: Cells) -> None:
    """A rung's workloads stand below one another, so that no two marks meet. Behind a mark: us, and how many times faster than the last."""
    slots, slowest = len(ladder.workloads), 0.0
    for i, (workload, colour) in enumerate(zip(ladder.workloads, still.COLOURS, strict=False)):
        last: dict[str, float] = {}
        axes.plot([], [], color=colour, marker="s", ls="", label=workload.partition("/")[2])
        for rung, variant in enumerate(ladder.rungs):
            record, y = known[ladder.rung(variant), workload], rung + (i + 0.5) / slots * 0.8 - 0.4
            said = []
            for x in readings(record):
                us = x.cold.median
                axes.plot(us, y, marker="o", ms=5, color=colour, mfc=_fill(x.state, colour))
                said.append(told(us) + (f", {last[x.state] / us:.2f}x" if x.state in last else ""))
                last[x.state], slowest = us, max(slowest, us)
            if said:
                axes.annotate(" / ".join(said), (us, y), xytext=(6, 0), textcoords="offset points", va="center", fontsize=7, bbox=BEHIND)
        if last and FULL in last and record.limit_us is not None:
            axes.axvline(record.limit_us, color=colour, ls="--", lw=0.9, zorder=0)
    axes.set_title(ladder.name, fontsize=9, loc="left", pad=20)
    axes.set_xscale("log")
    axes.set_xlim(right=slowest * ROOM)
    axes.set_yticks(range(len(ladder.rungs)), [variant or "the one to use" for variant in ladder.rungs])
    axes.invert_yaxis()
    axes.set_xlabel("us, cold kernel time")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=slots, fontsize=7, frameon=False, columnspacing=1, handletextpad=0)
    axes.grid(visible=True, axis="x", alpha=0.25)


def _fill(state: str, colour: str) -> str:
    return "none" if state == CAPPED else colour
