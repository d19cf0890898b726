"""The gate's one decision: is a figure worse, by more than is allowed and by more than chance?"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("asv", reason="asv is not installed: pip install 'opwise[asv]'")
from asv_runner.statistics import compute_stats
from script_modules import script

from opwise.ops import OPS

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def gate() -> ModuleType:
    return script("gate")


def measured(gate: ModuleType, median: float, noise: float, seed: int, samples: int = 32) -> Any:
    drawn = (median * (1 + noise * np.random.default_rng(seed).standard_normal(samples))).tolist()
    value, stats = compute_stats(drawn, 1)
    return gate.Figure(value, stats, drawn)


def thresholds() -> dict[str, float]:
    text = re.sub(r"^\s*//.*$", "", (ROOT / "asv.conf.json").read_text(), flags=re.MULTILINE)
    return dict(json.loads(text)["regressions_thresholds"])


def test_a_planted_five_percent_is_found_and_the_same_again_is_not(gate: ModuleType) -> None:
    share = gate.threshold("softmax.Softmax.track_kernel_cold('triton_jit', '4096x4096', 'float16')", thresholds())
    assert share < 0.05
    verdicts = [gate.change(measured(gate, 20e-6, 0.003, 2 * s), measured(gate, 20e-6, 0.003, 2 * s + 1), share) for s in range(100)]
    assert verdicts == [""] * 100
    slower = [gate.change(measured(gate, 20e-6, 0.003, 2 * s), measured(gate, 21e-6, 0.003, 2 * s + 1), share) for s in range(100)]
    assert slower == ["worse"] * 100
    assert gate.change(measured(gate, 21e-6, 0.003, 0), measured(gate, 20e-6, 0.003, 1), share) == "better"


def test_scatter_alone_is_no_regression(gate: ModuleType) -> None:
    """Medians a few percent apart of samples that scatter by a third: chance."""
    verdicts = [gate.change(measured(gate, 10e-6, 0.3, 2 * s, 16), measured(gate, 10e-6, 0.3, 2 * s + 1, 16), 0.03) for s in range(100)]
    assert verdicts.count("worse") <= 1


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (0, 64, "worse"), (64, 64, ""), (64, 0, "better"), (0, 0, ""), (20, 21, ""), (20, 23, "worse"),
        (None, 20, "works now"), (20, None, "fails now"), (None, None, ""), (math.nan, 20, ""), (20, math.nan, ""), (None, math.nan, ""),
    ],
)  # fmt: skip
def test_counts_failures_and_what_is_lacking(gate: ModuleType, before: float | None, after: float | None, said: str) -> None:
    assert gate.change(gate.Figure(before), gate.Figure(after), 0.1) == said


def test_every_judged_figure_has_a_threshold_of_its_own(gate: ModuleType) -> None:
    tables = thresholds()
    kinds = re.findall(r"\w+", re.search(r"\((.*)\)", gate.JUDGED)[1])  # type: ignore[index]
    for kind in kinds:
        assert any(re.match(pattern, f"{next(iter(OPS))}.X.track_{kind}('a', 'b')") for pattern in tables), kind
    assert gate.threshold("nothing.that.fits", tables) == 0.05


def test_what_moves_eager_as_well_is_the_machine(gate: ModuleType) -> None:
    """Everything takes 7 % longer, and one kernel 5 % more than that."""
    eager, slower, same = (
        f"softmax.Softmax.track_kernel_cold('{b}', '4096x4096', 'float16')" for b in ("torch_eager", "triton_jit", "cupy_raw")
    )
    spills = "softmax.Compiled.track_spill_bytes('triton_jit', 'float16', 'sm_90')"
    before = {eager: measured(gate, 55e-6, 0.002, 1), slower: measured(gate, 18e-6, 0.002, 2), same: measured(gate, 18e-6, 0.002, 3)}
    after = {
        eager: measured(gate, 58.85e-6, 0.002, 4),
        slower: measured(gate, 20.22e-6, 0.002, 5),
        same: measured(gate, 19.26e-6, 0.002, 6),
    }
    judged = gate.beside_the_yardstick(before | {spills: gate.Figure(0)}, after | {spills: gate.Figure(4)})
    found = {name: kind for name, kind, _ in gate.changes(before | {spills: gate.Figure(0)}, judged, thresholds())}
    assert found == {slower: "worse", spills: "worse"}
    assert eager not in judged, "no commit changes eager's kernels"


def test_a_gpu_that_something_else_used_is_told_from_a_regression(gate: ModuleType) -> None:
    """Two rounds of one sweep on an H200, us: a forgotten process ran beside the first."""
    beside = [8.28, 8.61, 8.61, 8.62, 8.62, 8.62, 8.61, 8.6, 8.44, 8.61, 8.62, 8.43, 8.44, 4.13]
    alone = [5.56, 5.04, 4.49, 4.49, 4.49, 4.49, 4.49, 4.49, 4.5]
    value, stats = compute_stats([us * 1e-6 for us in beside + alone], 1)
    name = "softmax.Softmax.track_kernel_cold('torch_inline', '1823x781', 'float16')"
    assert gate.disturbed({name: gate.Figure(value, stats)}) == [name]
    quiet = {f"{name}{i}": measured(gate, 4.5e-6, 0.01, i) for i in range(60)}
    assert gate.disturbed(quiet) == []
    assert gate.disturbed(quiet | {name: gate.Figure(value, stats)}) == [], "one kernel in sixty is that kernel's own"
    assert gate.disturbed({name: gate.Figure(None), "x.track_spill_bytes()": gate.Figure(4)}) == []


def test_help_shows_examples(gate: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        gate.main(["--help"])
    assert stopped.value.code == 0
    assert "python scripts/gate.py main HEAD --bench softmax" in capsys.readouterr().out
