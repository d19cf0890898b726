"""Synthetic runs for the tests of the bars: one that meets all of them, and what misses one."""

from __future__ import annotations

from dataclasses import replace

from recorded_runs import TOY, around

from opwise import provenance
from opwise.backends import BACKENDS
from opwise.bars.table import BARS, WORKLOADS, Bar
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.record import FULL, Record

BY_NAME = {bar.name: bar for bar in BARS}
SOFTMAX = BY_NAME["softmax-long"].workloads[0]


def cell(backend: str, workload: Workload, **changed: object) -> Record:
    """A record that meets every bar, as fast as torch eager in everything but a first call."""
    fields: dict[str, object] = {"status": "ok", "sol": 1.0, "kernel_cold_us": around(10.0), "launch_us": around(2.0),
                                 "call_us": around(4.0), "versus_best": (1.0, 1.0, 1.0), "device": TOY.device, "driver": "1.0",
                                 "capability": TOY.capability, "source": provenance.source(backend, workload.op), "commit": "abc1234",
                                 "dirty": False, "time": "2026-01-02T00:00:00+00:00"}  # fmt: skip
    if workload.op == "matmul" and workload.dtype != "float32":
        fields |= {"kernel_capped_us": around(12.0), "capped_versus_best": (1.0, 1.0, 1.0)}
    if backend != "torch_eager":
        fields["launch_us"] = around(1.0)
    return Record.of(f"{backend}/{workload.op}", workload, **{**fields, **changed})


def full_run() -> list[Record]:
    """All that the bars ask for, all of it met."""
    records = [cell(backend, w) for w in WORKLOADS for backend in BACKENDS]
    return records + [cell(b, Workload(op, (7,) * (2 if op == "softmax" else 3 if op == "matmul" else 1), "float32"), compile_cold_s=0.5,
                           compile_cached_s=0.05) for b in BACKENDS for op in OPS]  # fmt: skip


def missing_it(bar: Bar, r: Record) -> Record:
    """The record, changed so that it alone misses the bar."""
    if bar.figure == "sol":
        return replace(r, sol=bar.required[r.backend] - 0.001)
    if bar.figure == "speed":
        slow = (200.0, 199.0, 201.0)
        return replace(r, versus_best=slow) if bar.state == FULL else replace(r, capped_versus_best=slow)
    if bar.figure in ("launch", "call"):
        return replace(r, **{f"{bar.figure}_us": around(100.0)})  # type: ignore[arg-type]
    return replace(r, **{f"compile_{bar.figure}": 1000.0})  # type: ignore[arg-type]
