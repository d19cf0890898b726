"""The base of every op's classes. `setup_cache` measures everything at once in a process of its own and returns a plain mapping; the
`track_` methods look one value up. asv keys the cache by the source line of `setup_cache`: written once here, it is run once for all ops.

A missing key is n/a: this commit, or this machine, has no such cell. A cell that is not `ok` fails with its reason: never a time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented

from benchmarks._order import Order
from benchmarks._parameters import ARCHITECTURES, BACKENDS, DTYPES, SHAPES

Cells = Mapping[tuple[str, ...], Mapping[str, Any]]
NOT_APPLICABLE = ("unsupported", "unavailable")
HOURS = 3600.0


def _end_with_asv() -> None:
    """An asv that is killed cannot stop its sweep, which goes on using the GPU under whatever is measured next: times doubled so."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _value(cells: Cells, key: tuple[str, ...], field: str, where_none: str = "") -> Any:
    """`where_none`: why a cell that is right may have none of the field, "" where it may not."""
    cell = cells.get(key)
    name = "/".join(key)
    if cell is None or cell["status"] in NOT_APPLICABLE:
        raise SkipNotImplemented(cell["reason"] if cell else f"{name}: not in this commit, or not on this machine")
    if cell["status"] != "ok":
        raise RuntimeError(f"{name}: {cell['status']}: {cell['reason']}")
    if field not in cell:
        raise SkipNotImplemented(f"{name}: this commit does not tell {field}")
    if cell[field] is None and where_none:
        raise SkipNotImplemented(f"{name}: {where_none}")
    if cell[field] is None:
        raise RuntimeError(f"{name}: no {field} was measured: {cell['reason'] or 'no reason given'}")
    return cell[field]


class _Tracked:
    """Times and costs on a GPU. A subclass names its op and sets `params`."""

    op = ""
    version = "1"
    param_names = ["backend", "shape", "dtype"]

    def setup_cache(self) -> Cells:
        from benchmarks._timed import timed_cells

        _end_with_asv()
        return timed_cells(Order.given())

    setup_cache.timeout = HOURS  # type: ignore[attr-defined]

    def track_kernel_cold(self, cells: Cells, backend: str, shape: str, dtype: str) -> Any:
        return _value(cells, (self.op, backend, shape, dtype), "kernel_cold")

    def track_kernel_capped(self, cells: Cells, backend: str, shape: str, dtype: str) -> Any:
        return _value(cells, (self.op, backend, shape, dtype), "kernel_capped", "the power cap does not change its time")

    def track_call_cost(self, cells: Cells, backend: str, shape: str, dtype: str) -> Any:
        return _value(cells, (self.op, backend, shape, dtype), "call_cost")

    def track_error_ratio(self, cells: Cells, backend: str, shape: str, dtype: str) -> Any:
        return _value(cells, (self.op, backend, shape, dtype), "error_ratio")

    def track_extra_bytes(self, cells: Cells, backend: str, shape: str, dtype: str) -> Any:
        return _value(cells, (self.op, backend, shape, dtype), "extra_bytes")

    def track_carried(self, cells: Cells, backend: str, shape: str, dtype: str) -> Any:
        return _value(cells, (self.op, backend, shape, dtype), "carried")

    track_carried.unit = "1: carried over from a commit with the same kernels"  # type: ignore[attr-defined]
    track_kernel_cold.version = "2"  # type: ignore[attr-defined]  # since small tensors are timed in graphs (docs/measuring.md)
    track_kernel_cold.unit = track_kernel_capped.unit = track_call_cost.unit = "seconds"  # type: ignore[attr-defined]
    track_error_ratio.unit = "of the bound"  # type: ignore[attr-defined]
    track_extra_bytes.unit = "bytes"  # type: ignore[attr-defined]


class _Bits:
    """On a GPU: 1 where bits are not the same. Asked for by name alone (`--bench Bits`): finding out takes a commit minutes."""

    op = ""
    version = "1"
    param_names = ["backend", "shape", "dtype"]

    def setup_cache(self) -> Cells:
        from benchmarks._bits import bits_cells

        _end_with_asv()
        return bits_cells(Order.given())

    setup_cache.timeout = HOURS  # type: ignore[attr-defined]

    def track_not_repeatable(self, cells: Cells, backend: str, shape: str, dtype: str) -> Any:
        return _value(cells, (self.op, backend, shape, dtype), "not_repeatable")

    def track_batch_variant(self, cells: Cells, backend: str, shape: str, dtype: str) -> Any:
        return _value(cells, (self.op, backend, shape, dtype), "batch_variant", "an op without rows, or not repeatable")

    track_not_repeatable.unit = "1: a launch, a stream or a process has other bits"  # type: ignore[attr-defined]
    track_batch_variant.unit = "1: a row's bits depend on its batch"  # type: ignore[attr-defined]


class _Compiled:
    """What compilers make of an op's kernels, without a GPU: the most registers a thread, all bytes spilled, all instructions."""

    op = ""
    version = "1"
    param_names = ["backend", "dtype", "arch"]

    def setup_cache(self) -> Cells:
        from benchmarks._compiled import compiled_cells

        _end_with_asv()
        return compiled_cells(Order.given())

    setup_cache.timeout = HOURS  # type: ignore[attr-defined]

    def track_registers(self, cells: Cells, backend: str, dtype: str, arch: str) -> Any:
        return _value(cells, (self.op, backend, dtype, arch), "registers")

    def track_spill_bytes(self, cells: Cells, backend: str, dtype: str, arch: str) -> Any:
        return _value(cells, (self.op, backend, dtype, arch), "spill_bytes")

    def track_instructions(self, cells: Cells, backend: str, dtype: str, arch: str) -> Any:
        return _value(cells, (self.op, backend, dtype, arch), "instructions")

    track_registers.unit = "registers"  # type: ignore[attr-defined]
    track_spill_bytes.unit = "bytes"  # type: ignore[attr-defined]
    track_instructions.unit = "instructions"  # type: ignore[attr-defined]


def _axes(op: str, dtypes: list[str] = DTYPES) -> tuple[list[list[str]], list[list[str]]]:
    """`params` of an op's two classes."""
    return [BACKENDS, SHAPES[op], dtypes], [BACKENDS, dtypes, ARCHITECTURES]
