"""`choose --for energy`: ranked by the joules of a launch that were measured at the very workload, told in mJ."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from invoking import command
from recorded_runs import TOY, around, cell, store_of, stored

from opwise import library
from opwise.choosing.asked import NothingMeasured
from opwise.choosing.query import choose_from
from opwise.ops import Workload
from opwise.record import Record

WORKLOAD = Workload.parse("softmax/64x64/float16")
MEASURES = "opwise run softmax/64x64/float16 --energy"


def drawn(backend: str, us: float, joules: float | None, capped: float | None = None, **changed: object) -> Record:
    return cell(backend, us, joules=joules, capped_joules=capped, idle_w=90.0, **changed)


QUICK, SPARING, NEARLY = drawn("cupy_raw", 10.0, 0.005), drawn("triton_jit", 12.0, 0.004), drawn("numba_cuda", 12.0, 0.004125)
UNKNOWN = cell("torch_inline", 9.0)


def test_the_least_joules_are_chosen_whatever_the_time_and_five_percent_are_a_tie() -> None:
    store = store_of(QUICK, SPARING, NEARLY, UNKNOWN)
    assert choose_from(store, WORKLOAD, TOY, "kernel").backend == "torch_inline"
    found = choose_from(store, WORKLOAD, TOY, "energy")
    assert [(s.backend, s.mj, s.us, s.tied) for s in found.ranking] == [
        ("triton_jit", 4.0, 12.0, True), ("numba_cuda", 4.125, 12.0, True), ("cupy_raw", 5.0, 10.0, False)]  # fmt: skip
    assert "triton_jit: its launch draws 4 mJ, within 5 % of numba_cuda" in found.why
    assert "us" not in found.why.split()
    assert found.over_next == pytest.approx(4.125 / 4.0)
    assert found.excluded["torch_inline"] == f"nobody has measured its energy: {MEASURES} does"


def test_both_states_count_where_the_cap_changes_the_energy() -> None:
    one = drawn("cupy_raw", 10.0, 0.004, 0.009, kernel_capped_us=around(20.0))
    other = drawn("triton_jit", 10.0, 0.005, 0.006, kernel_capped_us=around(20.0))
    by_clock = {clock: choose_from(store_of(one, other), WORKLOAD, TOY, "energy", clock) for clock in ("full", "capped", "both")}
    assert {clock: found.backend for clock, found in by_clock.items()} == {"full": "cupy_raw", "capped": "triton_jit", "both": "triton_jit"}
    assert by_clock["both"].chosen.mj == pytest.approx(30**0.5)
    assert "5 mJ at full clock, 6 power-capped: geometric mean 5.477 mJ" in by_clock["both"].why
    assert "at full clock cupy_raw draws the least, power-capped triton_jit" in by_clock["both"].why


def test_nothing_is_interpolated_and_the_command_that_measures_is_told() -> None:
    with pytest.raises(NothingMeasured, match="no energy of softmax in float16 .*opwise run softmax/63x64/float16 --energy"):
        choose_from(store_of(QUICK, SPARING), Workload.parse("softmax/63x64/float16"), TOY, "energy")
    with pytest.raises(NothingMeasured, match="the counter stood still"):
        choose_from(store_of(replace(UNKNOWN, energy_note="the counter stood still")), WORKLOAD, TOY, "energy")


def test_the_command_tells_mj(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(library, "shipped", lambda: tmp_path / "none")
    stored(tmp_path, QUICK, SPARING)
    asked = ("softmax", "--shape", "64x64", "--dtype", "float16", "--for", "energy", "--out", str(tmp_path))
    choose = command("choose")
    output = choose(*asked).output
    assert "energy mJ" in output
    assert "energy us" not in output
    assert "triton_jit: its launch draws 4 mJ, the least; the next is cupy_raw, 1.25 times as much." in output
    assert [s["mj"] for s in json.loads(choose(*asked, "--json").stdout)["ranking"]] == [4.0, 5.0]
    refused = choose("--recorded", str(tmp_path / "recording.json"), "--for", "energy")
    assert (refused.exit_code, "needs one workload" in refused.output) == (2, True)


def test_a_run_without_a_gpu_says_that_no_energy_is_measured(tmp_path: Path) -> None:
    run = command("run")
    result = run("square/33/float32", "torch_eager", "--energy", "--device", "cpu", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "No GPU here: --energy measures nothing." in result.output
    (path,) = tmp_path.rglob("*.jsonl")
    assert "joules" not in path.read_text()
    assert run("square", "--energy", "--gpus", "all").exit_code == 2
    assert run("square", "--energy", "--scheduler", "tcp://nowhere:1").exit_code == 2
