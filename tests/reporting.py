"""What the tests of the report share: recorded runs, one made-up cell, and the command that writes a page."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from opwise.cli import app
from opwise.library import find
from opwise.record import Interval, Record
from opwise.report.html import MOST_BYTES

ROOT = Path(__file__).resolve().parents[1]
CORE = find(None, ROOT / "results", "nvidia-h200", "core")
SEED = find(None, ROOT / "results", "nvidia-h200", "seed")
CELL = Record(op="softmax", backend="triton_jit", variant="", dtype="float16", shape=(583, 931), status="ok", error_ratio=0.41,
              kernel_cold_us=Interval(10.0, 9.9, 10.2, 40, "events"), versus_best=(1.0, 1.0, 1.0), sol=0.91, limit_us=9.1, gb_per_s=217.1,
              tflop_per_s=0.27, device="NVIDIA H200", commit="abc1234", time="2026-01-01T00:00:00+00:00")  # fmt: skip


def report(*arguments: str) -> Result:
    return CliRunner(env={"TERM": "dumb"}).invoke(app, ["report", *arguments])


def written(tmp_path: Path, *runs: Path | str) -> Path:
    path = tmp_path / "report.html"
    result = report(*map(str, runs), "-o", str(path))
    assert result.exit_code == 0, result.output
    assert path.stat().st_size <= MOST_BYTES
    return path
