"""Tuned tables for tests: of the toy GPU, with times that follow from what the test wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from recorded_runs import TOY
from support import needs, or_skip

from opwise.backends import tuned
from opwise.backends.gemm import gpu, measured
from opwise.backends.tuned_table import TUNABLE, Row, Table, Time, versions_of
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.tuning.ways import Ways, ways

FACTS: dict[str, Any] = {"device": TOY.device, "capability": TOY.capability, "driver": "1.0",
                         "versions": {"torch": "2.0", "triton": "3.6.0", "nvrtc": "13.0"}, "commit": "abc1234", "dirty": False,
                         "gpu": "GPU-toy"}  # fmt: skip


def row(workload: str, shipped: str, times: Mapping[str, float], chosen: str = "") -> Row:
    """`chosen`: the quickest unless it is named."""
    chosen = chosen or min(times, key=lambda name: times[name])
    sizes = OPS[workload.partition("/")[0]].sizes(Workload.parse(workload).shape)
    return Row(workload, sizes, chosen, shipped, {name: Time(us, us * 0.999, us * 1.001, 0.5) for name, us in times.items()})


def table(name: str, *rows: Row, **changed: Any) -> Table:
    """As measured here and now, of today's kernels."""
    known = TUNABLE[name]
    made = Table(name, FACTS["device"], FACTS["capability"], FACTS["driver"], versions_of(known, FACTS), known.source, known.serves[0],
                 "abc1234", False, tuple(rows))  # fmt: skip
    return replace(made, **changed)


def forget() -> None:
    """What this process has looked up of tables and numbers."""
    for cached in (measured.of, tuned._shipped, tuned._stored, gpu._of):
        getattr(cached, "cache_clear", int)()  # a test may have put another function there


def known_ways(name: str) -> Ways:
    """Of Triton's tables where Triton is installed, of Numba's where Numba is."""
    if name.startswith("numba"):
        needs("numba.cuda")
    if name.startswith("triton"):
        from opwise.backends import triton_jit

        with or_skip():
            triton_jit.probe(torch.device("cpu"))
    return ways(TUNABLE[name])
