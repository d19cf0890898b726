"""Shipped tables of measured times: one JSON file a GPU beside this one, `<device>.json`, made by scripts/measured_table.py.

    {"device": "NVIDIA H100 80GB HBM3", "commit": "29f5e2c",
     "times": {"cuda_src/matmul": {"matmul/4096x4096x4096/16-bit": {"128x256": [180.4, 190.1], …}, …}, …}}

A time is [us at full clock, us power-capped or null], from a cold L2, of matrices aligned to 16 bytes. float16 and bfloat16 share a row.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from opwise.measure.device import slug

FOLDER = Path(__file__).parent
# A configuration slower than NEAR x the fastest of its row at full clock is never taken, even if all faster ones are not offered. The power
# cap does not slow one configuration down that much more than another.
NEAR = 1.1


class Time(NamedTuple):
    """us; `capped`: None if it was not measured, or the power cap has no effect."""

    full: float
    capped: float | None = None


Row = Mapping[str, Time]  # configuration -> its time


@cache
def of(device: str) -> Mapping[str, Mapping[str, Row]]:
    """Table -> workload -> row; empty for a GPU that has no shipped table."""
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
    """The key of a product's row. sizes: m, k, n."""
    return f"matmul/{'x'.join(map(str, sizes))}/{'16-bit' if dtype in ('float16', 'bfloat16') else dtype}"


def quickest(row: Row, offered: Collection[str]) -> str | None:
    """Among the offered ones within NEAR of the fastest at full clock: the least product of full and capped time if all have both, else the
    least full time. None if none of them is offered."""
    least = min((time.full for time in row.values()), default=0.0)
    near = {name: time for name, time in row.items() if time.full <= NEAR * least and name in offered}
    both = all(time.capped is not None for time in near.values())
    return min(near, key=lambda name: near[name].full * ((near[name].capped or 1.0) if both else 1.0), default=None)
