"""Stored runs for tests: the committed ones, and small synthetic ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from opwise import provenance
from opwise.choosing.store import Gpu, Store
from opwise.library import find
from opwise.record import Interval, Record, read
from opwise.run_files import append

ROOT = Path(__file__).resolve().parents[1]
H200 = Gpu("NVIDIA H200", "9.0")
TOY = Gpu("NVIDIA Toy", "8.6")


def around(us: float) -> Interval:
    return Interval(us, us * 0.99, us * 1.01, 40, "events")


def cell(backend: str, cold_us: float | None, call_us: float = 1.0, *, shape: tuple[int, ...] = (64, 64), **changed: object) -> Record:
    """A timed record of softmax in float16 on the toy GPU, of kernels as they are now; without times where `cold_us` is None."""
    op = str(changed.get("op", "softmax"))
    record = Record(
        op=op, backend=backend, variant="", dtype="float16", shape=shape, status="ok", error_ratio=0.4, device=TOY.device,
        capability=TOY.capability, driver="1.0", versions={"torch": "2.0"}, source=provenance.source(backend, op),
        commit="abc1234", dirty=False, time="2026-01-02T00:00:00+00:00",
    )  # fmt: skip
    if cold_us is not None:
        record = replace(record, kernel_cold_us=around(cold_us), kernel_warm_us=around(cold_us * 0.9), call_us=around(call_us))
    return replace(record, **changed)  # type: ignore[arg-type]


def store_of(*records: Record) -> Store:
    return Store(sorted(records, key=lambda r: r.time))


def stored(folder: Path, *records: Record, device: str = "nvidia-toy", name: str = "20260102T000000Z-core-abc1234") -> Path:
    path = folder / device / f"{name}.jsonl"
    append(path, [r.to_json() for r in records])
    return path


def core_run() -> list[Record]:
    """The cells of the newest committed core run on an H200."""
    return [r for r in read(find(None, ROOT / "results", "nvidia-h200", "core")) if not r.variant]
