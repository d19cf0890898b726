"""Measured times of products that ship: beside this file one of each GPU, `<device>.json`, made by scripts/measured_table.py.

    {"device": "NVIDIA H100 80GB HBM3", "commit": "29f5e2c",
     "times": {"cuda_src/matmul": {"matmul/4096x4096x4096/16-bit": {"128x256": [180.4, 190.1], …}, …}, …}}

A time is [us at full clock, us power-capped or null], cold, of matrices at multiples of 16 bytes. float16 and bfloat16 have one row.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from opwise.measure.device import slug

FOLDER = Path(__file__).parent
# Times the least at full clock: what is further off is not taken, whatever else of the row is not offered. The power cap slows down no
# configuration that much more than another.
NEAR = 1.1


class Time(NamedTuple):
    """us; `capped`: None where it was not measured, or the power cap changes nothing."""

    full: float
    capped: float | None = None


Row = Mapping[str, Time]  # by configuration


@cache
def of(device: str) -> Mapping[str, Mapping[str, Row]]:
    """By table, by workload; empty for a GPU of any other name than those that ship."""
    path = FOLDER / f"{slug({'device': device})}.json"
    if not path.is_file():
        return {}
    data = json.loads(path.read_text(encoding="utf-8"))
    if data["device"] != device:
        return {}
    return {
        table: {workload: {name: Time(*time) for name, time in row.items()} for workload, row in rows.items()}
        for table, rows in data["times"].items()
    }


def workload(dtype: str, sizes: tuple[int, ...]) -> str:
    """What a product's row goes by."""
    return f"matmul/{'x'.join(map(str, sizes))}/{'16-bit' if dtype in ('float16', 'bfloat16') else dtype}"


def quickest(row: Row, offered: Collection[str]) -> str | None:
    """Of those near the least at full clock: the least product of both states' times where all have both, else the least at full clock.
    None where none is offered."""
    least = min((time.full for time in row.values()), default=0.0)
    near = {name: time for name, time in row.items() if time.full <= NEAR * least and name in offered}
    both = all(time.capped is not None for time in near.values())
    return min(near, key=lambda name: near[name].full * ((near[name].capped or 1.0) if both else 1.0), default=None)
