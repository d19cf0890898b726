"""What asv is given: axes that are opwise's own, values with their samples, n/a and failures told apart."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import needs

from opwise.backends import BACKENDS
from opwise.measure.sameness import Facts
from opwise.ops import OPS, OURS
from opwise.ops.spec import Workload
from opwise.record import Interval, Record

needs("asv_runner")
ROOT = Path(__file__).resolve().parents[1]
KEY = ("softmax", "triton_jit", "4096x4096", "float16")


@pytest.fixture(autouse=True)
def _suite_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def module(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


def test_the_axes_are_those_of_opwise() -> None:
    axes = module("_parameters")
    assert list(BACKENDS) == axes.BACKENDS
    assert set(axes.SHAPES) == set(OURS)
    for op, shapes in axes.SHAPES.items():
        assert all(Workload.parse(f"{op}/{shape}/float32").shape for shape in shapes)


@pytest.mark.parametrize("op", OURS)
def test_each_op_has_a_class_for_times_and_one_for_compilers(op: str) -> None:
    suite, axes = module(op), module("_parameters")
    timed, built = getattr(suite, op.capitalize()), suite.Compiled
    assert timed.op == built.op == op
    assert timed.params == [list(BACKENDS), axes.SHAPES[op], list(timed.params[2])]
    assert set(timed.params[2]) == set(OPS[op].dtypes)
    assert built.params == [list(BACKENDS), timed.params[2], axes.ARCHITECTURES]
    assert (suite.Bits.op, suite.Bits.params) == (op, timed.params)


def test_bits_that_differ_are_one_and_what_was_not_found_out_fails() -> None:
    figures, suite, at = module("_bits")._figures, module("softmax").Bits(), KEY[1:]
    whole, varies = (figures(Facts(True, same, "", "ab")._asdict()) for same in (True, False))
    assert [suite.track_batch_variant({KEY: cell}, *at) for cell in (whole, varies)] == [0, 1]
    assert suite.track_not_repeatable({KEY: figures(Facts(False, None, "launch 2", "ab")._asdict())}, *at) == 1
    with pytest.raises(module("_tracked").SkipNotImplemented, match="without rows"):
        suite.track_batch_variant({KEY: figures(Facts(True, None, "", "ab")._asdict())}, *at)
    with pytest.raises(RuntimeError, match="out of memory"):
        suite.track_not_repeatable({KEY: figures(Facts(differs="out of memory")._asdict())}, *at)


def test_the_suite_imports_nothing_heavy() -> None:
    """asv forks a process for each value it looks up, and a fork must not inherit CUDA."""
    heavy = ("torch", "triton", "numba", "cupy")
    code = f"import sys; import {', '.join(f'benchmarks.{op}' for op in OPS)}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_time_is_given_in_seconds_with_a_sample_for_each_block() -> None:
    cold = Interval(18.4, 18.3, 18.5, 160, "graph", rounds=(18.3, 18.4, 18.6))
    record = Record.of("triton_jit/softmax", Workload.parse("softmax/4096x4096/float16"), status="ok", kernel_cold_us=cold, error_ratio=0.9)
    cell = module("_timed")._figures(record)
    assert cell["kernel_cold"]["number"] == 1
    assert cell["kernel_cold"]["samples"] == pytest.approx([18.3e-6, 18.4e-6, 18.6e-6])
    assert module("_tracked")._value({KEY: cell}, KEY, "kernel_cold") == cell["kernel_cold"]


def test_a_product_s_power_capped_time_is_a_figure_of_its_own_and_lacks_nowhere_else() -> None:
    cold, capped = (Interval(us, us, us, 40, "graph", rounds=(us,)) for us in (170.0, 190.0))
    made = Record.of("triton_jit/matmul", Workload.parse("matmul/64x64x64/float16"), status="ok", kernel_cold_us=cold)
    suite, at = module("matmul").Matmul(), ("triton_jit", "64x64x64", "float16")
    figures = module("_timed")._figures
    both, one = ({("matmul", *at): figures(r)} for r in (replace(made, kernel_capped_us=capped), made))
    assert suite.track_kernel_cold(both, *at)["samples"] == pytest.approx([170e-6])
    assert suite.track_kernel_capped(both, *at)["samples"] == pytest.approx([190e-6])
    with pytest.raises(module("_tracked").SkipNotImplemented, match="the power cap does not change"):
        suite.track_kernel_capped(one, *at)
    assert (suite.track_kernel_cold.version, suite.track_kernel_capped.unit) == ("3", "seconds")
    assert module("softmax").Softmax.track_kernel_cold.version == "2", "the meaning changed for products alone"


@pytest.mark.parametrize(
    ("cells", "raised", "said"),
    [
        ({}, "SkipNotImplemented", "not in this commit"),
        ({KEY: {"status": "unsupported", "reason": "rows of 4096"}}, "SkipNotImplemented", "rows of 4096"),
        ({KEY: {"status": "unavailable", "reason": "no nvcc"}}, "SkipNotImplemented", "no nvcc"),
        ({KEY: {"status": "ok", "reason": ""}}, "SkipNotImplemented", "does not tell kernel_cold"),
        ({KEY: {"status": "ok", "reason": "", "kernel_cold": None}}, "RuntimeError", "no kernel_cold was measured"),
        ({KEY: {"status": "wrong", "reason": "7 of 9 elements", "kernel_cold": 1.0}}, "RuntimeError", "wrong: 7 of 9 elements"),
        ({KEY: {"status": "timeout", "reason": "no sign of life"}}, "RuntimeError", "timeout: no sign of life"),
    ],
)
def test_what_is_lacking_is_skipped_and_what_is_wrong_fails(cells: Any, raised: str, said: str) -> None:
    with pytest.raises(Exception, match=said) as caught:
        module("_tracked")._value(cells, KEY, "kernel_cold")
    assert type(caught.value).__name__ == raised


def test_stand_ins_have_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opwise.runner.survey.default_device", lambda: "cpu")
    assert module("_timed").timed_cells(OPS) == {}


def test_compilers_are_summed_over_the_kernels_of_an_op_and_dtype() -> None:
    lines = {
        "matmul_tfloat32_64x64": "96 registers, 0 bytes spilled, 100 instructions",
        "matmul: tfloat32, 128x64": "200 registers, 8 bytes spilled, 300 instructions",
        "matmul_float32_simt": "255 registers, 64 bytes spilled, 999 instructions",
        "mean: float32": "20 registers, 0 bytes spilled",
    }
    summed = module("_compiled")._summed
    assert summed(lines, "matmul", "tfloat32") == {"status": "ok", "registers": 200, "spill_bytes": 8, "instructions": 400}
    assert summed(lines, "mean", "float32") == {"status": "ok", "registers": 20, "spill_bytes": 0}, (
        "an early commit counted no instructions"
    )
    assert summed(lines, "softmax", "float32") is None
