"""Measured times that ship: which configuration follows from a row, which GPU gets them, and that the files name what there is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from recorded_runs import TOY
from script_modules import script
from tuned_tables import forget, known_ways, row, table

from opwise.backends import tuned, tuned_table
from opwise.backends.gemm import measured
from opwise.backends.gemm.choice import choose
from opwise.backends.gemm.cost import Product
from opwise.backends.gemm.gpu import H100, HOPPER
from opwise.backends.gemm.measured import Row, Time, quickest
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.tuning.matmul import offered

measured_table = script("measured_table")
CUDA, GPU = "cuda_src/matmul", torch.device("cuda", 0)
SHIPPED = sorted(measured.FOLDER.glob("*.json"))


@pytest.mark.parametrize(
    ("times", "known", "chosen"),
    [
        ({"a": Time(10.0), "b": Time(9.0)}, "ab", "b"),
        ({"a": Time(10.0, 10.0), "b": Time(9.6, 11.0)}, "ab", "a"),
        ({"a": Time(10.0, 10.0), "b": Time(9.6)}, "ab", "b"),
        ({"a": Time(10.0), "b": Time(9.6), "c": Time(5.0)}, "ab", None),
        ({"a": Time(10.0), "gone": Time(9.6)}, "ab", "a"),
        ({"a": Time(10.0, 9.0), "b": Time(9.6, 11.0), "far": Time(20.0)}, ("a", "b", "far"), "a"),
        ({}, "ab", None),
    ],
)  # fmt: skip
def test_of_a_row_the_quickest_in_both_states_is_taken_if_it_is_near_the_quickest(times: Row, known: str, chosen: str | None) -> None:
    assert quickest(times, known) == chosen


@pytest.fixture
def ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that ships of the toy GPU, which is in this machine; no table of the user's."""
    rows = {"matmul/4096x4096x4096/16-bit": {"64x64_s1": [10.0, None], "128x256": [12.0, None]}}
    (tmp_path / "nvidia-toy.json").write_text(json.dumps({"device": TOY.device, "commit": "abc1234", "times": {CUDA: rows}}))
    monkeypatch.setattr(measured, "FOLDER", tmp_path)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: TOY.device)
    monkeypatch.setenv(tuned_table.VARIABLE, tuned_table.OFF)
    forget()
    yield tmp_path
    forget()


def test_they_come_before_the_model_and_behind_the_user_s_own(ships: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    product = Product(4096, 4096, 4096, "bfloat16")
    known = offered(CUDA, product, HOPPER)
    choices = tuned.look(CUDA, GPU)
    assert choose(product, known, H100, choices).by == "measured"
    assert choose(product, known, H100, choices).name == "64x64_s1"
    assert choose(product._replace(m=4095), known, H100, choices).by == "predicted", "of exactly these sizes"
    assert choose(product._replace(kind="tfloat32"), known, H100, choices).by == "predicted"
    own = table(CUDA, row("matmul/4096x4096x4096/bfloat16", "128x256", {"128x256": 2.0, "128x192": 1.0}))
    monkeypatch.setenv(tuned_table.VARIABLE, str(ships))
    monkeypatch.setattr(tuned, "_facts", lambda index: {"device": TOY.device, "capability": TOY.capability, "driver": "1.0",
                                                        "versions": {"nvrtc": "13.0"}})  # fmt: skip
    tuned_table.write(own, ships)
    forget()
    assert choose(product, known, H100, tuned.look(CUDA, GPU)).by == "tuned here"
    assert choose(product, known, H100, tuned.look(CUDA, GPU)).name == "128x192"
    assert choose(product._replace(kind="float16"), known, H100, tuned.look(CUDA, GPU)).name == "64x64_s1", "of another type, what ships"
    assert tuned.look("cuda_src/softmax", GPU) is tuned.SHIPPED


def test_a_gpu_of_another_name_gets_none(ships: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured.of(TOY.device)
    assert measured.of("NVIDIA toy") == {}, "its file's name is the same, its name is not"
    assert measured.of("NVIDIA B200") == {}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA toy")
    forget()
    assert tuned.look(CUDA, GPU) is tuned.SHIPPED
    assert tuned.look(CUDA, torch.device("cpu")) is tuned.SHIPPED


def test_a_file_is_made_of_named_products_by_the_names_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in measured_table.TABLES.values():
        known_ways(each)
    of = {
        CUDA: ("128x256", "128x192"),
        "numba_cuda/matmul": (),
        "triton_jit/matmul": ("128x128x64/8/5/split_k4", "64x64x64/4/4/persistent"),
    }
    monkeypatch.setattr(measured_table, "offered", lambda name, product, machine: of[name])
    lines = [
        {"shape": [4096, 4096, 4096], "kind": "16", "us": {"cupy_raw 128x256": 180.352, "cupy_raw 128x192": 190.0, "cupy_raw gone": 170.0,
         "triton_jit map:64x64x64/4/4/persistent": 200.0, "triton_jit map:128x128x64/8/5/split_k4": 300.0, "torch.mm": 1.0}},
        {"shape": [36, 4677, 30], "kind": "float32", "us": {"cupy_raw 128x256": 1.0}},
    ]  # fmt: skip
    timed = {"cupy_raw 128x256": [200.0, 220.0], "cupy_raw 128x192": [191.0, None], "triton_jit 128x128x64/8/5/split4": [310.0, 341.0],
             "triton_jit 64x64x64/4/4/resident": [100.0, 105.0], "torch.mm": [1.0, 2.0]}  # fmt: skip
    capped = [{"workload": "matmul/4096x4096x4096/bfloat16", "times": timed}]
    left_out = measured_table.Counter()
    times = measured_table.made(lines, capped, left_out)
    assert left_out == {"of products of other sets": 1, "not offered by cupy_raw": 1, "of torch.mm": 1}
    later = [{"workload": "matmul/4096x4096x4096/float16", "times": {"cupy_raw 128x256": [90.176, 99.0], "cupy_raw 256x160": [80.0, None]}},
             {"workload": "matmul/1024x1024x1024/float16", "times": {"cupy_raw 256x160": [80.0, None]}}]  # fmt: skip
    of[CUDA] = ("128x256", "128x192", "256x160")
    measured_table.add_beside(times, later, left_out)
    assert left_out["of rows that have none of the line"] == 1
    path = measured_table.written(times, TOY.device, "abc1234", tmp_path)
    monkeypatch.setattr(measured, "FOLDER", tmp_path)
    forget()
    found = measured.of(TOY.device)
    forget()
    assert path.name == "nvidia-toy.json"
    assert found[CUDA] == {"matmul/4096x4096x4096/16-bit": {"128x256": Time(180.4, 198.4), "128x192": Time(190.0), "256x160": Time(160.0)}}
    assert found["triton_jit/matmul"]["matmul/4096x4096x4096/16-bit"] == {
        "128x128x64/8/5/split_k4": Time(300.0, 330.0), "64x64x64/4/4/persistent": Time(200.0, 210.0)}  # fmt: skip


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_ships_is_offered_for_its_product_and_of_no_product_that_choices_are_judged_by(path: Path) -> None:
    data = json.loads(path.read_text())
    judged = {measured.workload(w.dtype, w.shape) for w in OPS["matmul"].workloads["random"]} - measured_table.shipped()
    assert measured.of(data["device"]), "its name is the device's"
    assert data["commit"]
    for name, rows in data["times"].items():
        known_ways(name)
        assert not judged & rows.keys()
        for workload, times in rows.items():
            spelled = Workload.parse(workload.replace("16-bit", "bfloat16"))
            product = Product(*spelled.shape, spelled.dtype)  # type: ignore[call-arg]
            assert times.keys() <= offered(name, product, HOPPER).keys(), workload
            assert all(full > 0 and (capped is None or capped > 0) for full, capped in times.values())
