"""`opwise inspect --plan`: the configurations of a product, their times, and by what the plan takes one: with no GPU, and a played one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from invoking import invoke
from recorded_runs import TOY
from tuned_tables import forget, known_ways, row, table

from opwise.backends import tuned, tuned_table
from opwise.backends.gemm import gpu, measured
from opwise.backends.gemm.gpu import H100
from opwise.inspecting.plans import TABLES

IMPLEMENTATION, WORKLOAD = "cupy_raw/matmul", "matmul/4096x4096x4096/float16"
H100_NAME = next(iter(gpu.SHIPPED))


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def asked(*arguments: str) -> dict[str, Any]:
    told = invoke("inspect", "--plan", *arguments, "--json")
    assert told.exit_code == 0, told.output
    found: dict[str, Any] = json.loads(told.stdout)
    return found


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize("implementation", TABLES)
def test_configurations_are_listed_with_the_least_predicted_first_and_one_is_chosen(implementation: str) -> None:
    known_ways(TABLES[implementation])
    for dtype in ("float16", "tfloat32", "float32"):
        found = asked(implementation, f"matmul/1000x1000x1000/{dtype}", "--gpu", "h100")
        predicted = [c["predicted"] for c in found["configurations"]]
        assert len(predicted) > 1
        assert predicted == sorted(predicted)
        assert (found["gpu"], found["numbers"]) == (H100_NAME, "shipped")
        assert (found["chosen"], found["by"]) == (found["configurations"][0]["name"], "predicted"), "no such product is in a table"


@pytest.mark.usefixtures("without_gpu")
def test_measured_times_that_ship_stand_beside_and_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, last = asked(IMPLEMENTATION, WORKLOAD)["configurations"]
    ships = {"cuda_src/matmul": {"matmul/4096x4096x4096/16-bit": {last["name"]: measured.Time(150.0, 160.0), "gone": measured.Time(149.0)}}}
    monkeypatch.setattr(measured, "of", lambda device: ships if device == H100_NAME else {})
    found = asked(IMPLEMENTATION, WORKLOAD)
    assert (found["chosen"], found["by"]) == (last["name"], "measured")
    assert found["configurations"][-1] == {**last, "full": 150.0, "capped": 160.0}
    shown = " ".join(invoke("inspect", "--plan", IMPLEMENTATION, WORKLOAD).stdout.split())
    assert f"on {H100_NAME}, whose numbers are shipped" in shown
    assert "configuration ┃ predicted us ┃ measured us ┃ power-capped us ┃" in shown
    assert "│ 150 │ 160 │ chosen: measured" in shown


def test_on_a_gpu_its_own_table_and_numbers_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name=TOY.device, multi_processor_count=10, major=8, minor=0, shared_memory_per_block_optin=160 * 1024)
    for name, value in {
        "is_available": True,
        "current_device": 0,
        "get_device_name": TOY.device,
        "get_device_properties": properties,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setenv(tuned_table.VARIABLE, str(tmp_path))
    forget()
    own = row(WORKLOAD, "128x256_v16", {"128x256_v16": 900.0, "64x64_v16": 800.0})
    monkeypatch.setattr(tuned, "_stored", lambda *_: tuned.Choices(table("cuda_src/matmul", own)))
    try:
        found = asked(IMPLEMENTATION, WORKLOAD)
        assert (found["gpu"], found["numbers"]) == (TOY.device, "an H100's")
        assert (found["chosen"], found["by"]) == ("64x64_v16", "tuned here")
        assert {c["name"]: c["tuned"] for c in found["configurations"] if c["tuned"]} == {"128x256_v16": 900.0, "64x64_v16": 800.0}
        gpu.write(H100, tmp_path, TOY.device)
        assert asked(IMPLEMENTATION, WORKLOAD)["numbers"] == "measured here"
        assert asked(IMPLEMENTATION, WORKLOAD, "--gpu", "h100")["gpu"] == H100_NAME, "another one's can be asked for"
    finally:
        forget()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("cupy_raw/softmax", "softmax/8x8/float16"),
            "--plan takes triton_jit/matmul, cupy_raw/matmul, torch_inline/matmul, numba_cuda/matmul",
        ),
        ((IMPLEMENTATION,), "--plan takes an implementation and a workload"),
        ((IMPLEMENTATION, "matmul/8x8/float16"), "'matmul/8x8/float16' is no product"),
        ((IMPLEMENTATION, "softmax/8x8/float16"), "is no product"),
        ((IMPLEMENTATION, WORKLOAD, "--gpu", "b200"), f"known are {H100_NAME}"),
        ((IMPLEMENTATION, WORKLOAD, "--sass", "--arch", "sm_90"), "leave --arch, --sass out"),
    ],
)
@pytest.mark.usefixtures("without_gpu")
def test_bad_usage_says_what_is_taken(arguments: tuple[str, ...], says: str) -> None:
    told = invoke("inspect", "--plan", *arguments)
    assert told.exit_code == 2
    assert says in " ".join(told.output.split())


def test_whose_gpu_is_asked_of_plans_alone_and_help_has_an_example() -> None:
    assert "--gpu needs --plan" in invoke("inspect", "triton_jit/softmax", "--gpu", "h100").output
    assert f"opwise inspect --plan torch_inline/matmul {WORKLOAD}" in " ".join(invoke("inspect", "--help").output.split())
