"""What the tests of the report share: recorded runs, one made-up cell, and the command that writes a page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from invoking import command

from opwise.library import find
from opwise.record import Interval, Record
from opwise.report.html import MOST_BYTES

ROOT = Path(__file__).resolve().parents[1]
CORE = find(None, ROOT / "results", "nvidia-h200", "core")
SEED = find(None, ROOT / "results", "nvidia-h200", "seed")
CELL = Record(op="softmax", backend="triton_jit", variant="", dtype="float16", shape=(583, 931), status="ok", error_ratio=0.41,
              kernel_cold_us=Interval(10.0, 9.9, 10.2, 40, "events"), versus_best=(1.0, 1.0, 1.0), sol=0.91, limit_us=9.1, gb_per_s=217.1,
              tflop_per_s=0.27, device="NVIDIA H200", commit="abc1234", time="2026-01-01T00:00:00+00:00")  # fmt: skip
PRODUCT = replace(CELL, op="matmul", shape=(4096, 4096, 4096), limit_us=173.0, sm_clock_mhz=1980.0)
ROOFS = {"copy_1_bytes_gb_per_s": 4000.0, "peak_tensor_float16_tflop_per_s": 800.0, "capped_peak_tensor_float16_tflop_per_s": 650.0}
FLOPS, BYTES = 2 * 4096**3, 3 * 2 * 4096**2


def product(backend: str, full_us: float, full_ratio: float, capped_us: float, capped_ratio: float) -> Record:
    """A product timed in both states; a ratio of 1 is the fastest."""
    full, capped = ((x, x, x) if x == 1 else (x, x - 0.001, x + 0.001) for x in (full_ratio, capped_ratio))
    return replace(
        PRODUCT, backend=backend, kernel_cold_us=around(full_us), versus_best=full, sol=173 / full_us, kernel_capped_us=around(capped_us),
        capped_versus_best=capped, capped_limit_us=200.0, capped_sol=200 / capped_us, capped_sm_clock_mhz=1500.0,
        gb_per_s=BYTES / full_us / 1e3, tflop_per_s=FLOPS / full_us / 1e6, capped_tflop_per_s=FLOPS / capped_us / 1e6,
    )  # fmt: skip


def around(us: float) -> Interval:
    return Interval(us, 0.999 * us, 1.001 * us, 40, "events")


TWO_STATES = (  # nobody is the fastest in both, and what ties in both has the least geometric mean
    product("numba_cuda", 214.0, 1.209, 221.0, 1.062),
    product("torch_inline", 204.0, 1.153, 208.0, 1.0),
    product("torch_eager", 177.0, 1.0, 216.0, 1.038),
    product("triton_jit", 178.0, 1.006, 209.0, 1.005),
)


def of_schema_1(r: Record, throttle: str = "power cap") -> Record:
    """As the reader gives a record of schema 1: one state, the power-capped one of a product that met the power cap."""
    data = {name: value for name, value in json.loads(r.to_json()).items() if "capped" not in name}
    return Record.from_data(data | {"schema": 1, "throttle": [throttle]})


report = command("report")


def written(tmp_path: Path, *runs: Path | str) -> Path:
    path = tmp_path / "report.html"
    result = report(*map(str, runs), "-o", str(path))
    assert result.exit_code == 0, result.output
    assert path.stat().st_size <= MOST_BYTES
    return path
