"""`opwise choose` as a user meets it: the answer of the committed runs, errors that help, output that machines can read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from invoking import command
from recorded_runs import cell, stored

from opwise import library
from opwise.backends import BACKENDS

invoke = command("choose")


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def own_runs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(library, "shipped", lambda: tmp_path / "none")
    return tmp_path


SOFTMAX = ("softmax", "--shape", "64x64", "--dtype", "float16")


def test_without_a_gpu_it_answers_for_the_newest_recorded_device_and_says_which() -> None:
    result = invoke("softmax", "--shape", "4096x4096", "--dtype", "float16")
    assert result.exit_code == 0
    assert "softmax/4096x4096/float16 for stream, on NVIDIA H100 80GB HBM3, compute capability 9.0" in result.output
    rows = {line.split()[0]: line for line in result.output.splitlines() if "│" in line}
    assert set(rows) == set(BACKENDS)
    (chosen,) = (backend for backend, row in rows.items() if "chosen" in row)
    assert chosen != "torch_eager"
    assert " 1.00 " in rows["torch_eager"]
    assert f"\n{chosen}: its kernel keeps the stream for " in result.output


def test_a_product_of_an_older_run_is_said_to_be_power_capped_only(own_runs_only: Path) -> None:
    """As schema 1 stored it: one cold time, and the power cap among the throttle reasons."""
    made = json.loads(cell("cupy_raw", 200.0, shape=(4096, 4096, 4096), op="matmul", throttle=("power cap",)).to_json())
    path = stored(own_runs_only)
    path.write_text(json.dumps({**{name: v for name, v in made.items() if "capped" not in name}, "schema": 1}) + "\n")
    asked = ("matmul", "--shape", "4096x4096x4096", "--dtype", "float16", "--out", str(own_runs_only))
    output = invoke(*asked).output
    assert "200 us power-capped" in output
    assert "no time at full clock is on record, so all are compared power-capped" in output
    assert "\n    opwise run matmul/4096x4096x4096/float16\n" in output, "what takes both"
    found = json.loads(invoke(*asked, "--json").stdout)
    assert (found["clock"], found["states"], found["ranking"][0]["full_us"], found["ranking"][0]["capped_us"]) == (
        "both", ["capped"], None, 200.0)  # fmt: skip
    refused = invoke(*asked, "--clock", "full")
    assert refused.exit_code == 1
    assert "only its power-capped time is on record" in refused.output


def test_json_is_one_object(own_runs_only: Path) -> None:
    stored(own_runs_only, cell("torch_eager", 9.0), cell("cupy_raw", 5.0), cell("triton_jit", None, status="wrong", reason="[b]nan[/b]"))
    result = invoke(*SOFTMAX, "--out", str(own_runs_only), "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert (data["backend"], data["over_eager"], data["over_next"], data["shape"], data["refresh"]) == ("cupy_raw", 1.8, 1.8, [64, 64], "")
    assert [(s["backend"], s["us"], s["basis"]) for s in data["ranking"]] == [
        ("cupy_raw", 5.0, "measured"),
        ("torch_eager", 9.0, "measured"),
    ]
    assert "[b]nan[/b]" in data["excluded"]["triton_jit"]


def test_stale_figures_are_shown_as_stale_with_the_command_that_refreshes_them(own_runs_only: Path) -> None:
    stored(
        own_runs_only,
        cell("torch_eager", 9.0),
        cell("cupy_raw", 5.0, source="0123"),
        cell("triton_jit", None, status="wrong", reason="[b]"),
    )
    output = invoke(*SOFTMAX, "--out", str(own_runs_only)).output
    rows = {line.split()[0]: line for line in output.splitlines() if "│" in line}
    assert "stale" in rows["cupy_raw"]
    assert "stale" not in rows["torch_eager"]
    assert "\n    opwise run softmax/64x64/float16\n" in output
    assert "triton_jit cannot be chosen: wrong at softmax/64x64/float16: [b]" in output, "reasons are text, not markup"


def test_a_torn_store_is_warned_of(own_runs_only: Path) -> None:
    path = stored(own_runs_only, cell("torch_eager", 9.0), cell("cupy_raw", 5.0))
    path.write_bytes(path.read_bytes()[:-30])
    result = invoke(*SOFTMAX, "--out", str(own_runs_only))
    assert result.exit_code == 0
    assert "torn" in result.output
    assert "torch_eager" in result.stdout


def test_an_empty_store_is_a_failure_that_says_what_to_do(own_runs_only: Path) -> None:
    result = invoke(*SOFTMAX, "--out", str(own_runs_only))
    assert result.exit_code == 1
    assert "`opwise run` on a machine with a GPU makes one" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("sofmax", "--shape", "4x4", "--dtype", "float16"), "known are square, mean"),
        (("softmax", "--shape", "4by4", "--dtype", "float16"), "MxKxN"),
        ((*SOFTMAX, "--for", "speed"), "known are stream, kernel, graph, call"),
        ((*SOFTMAX, "--clock", "cold"), "known are both, full, capped"),
        ((*SOFTMAX, "--for", "graph", "--clock", "full"), "power-capped"),
        ((*SOFTMAX, "--device", "a100"), "known are NVIDIA H100 80GB HBM3, NVIDIA H200"),
        ((*SOFTMAX, "--device", "cuda:0"), "torch sees no GPU"),
        ((*SOFTMAX, "--device", "cpu"), "nothing is timed on the CPU"),
        ((*SOFTMAX, "--measure"), "nothing can be measured here, torch sees no GPU"),
        (("softmax", "--dtype", "float16"), "--shape"),
    ],
)  # fmt: skip
def test_bad_usage_is_2_and_says_what_is_taken(arguments: tuple[str, ...], says: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())
