"""The history's cells: those whose sources or machine code were measured before are carried over, and some of them measured anyway."""

from __future__ import annotations

import ctypes
import importlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from script_modules import script
from support import needs

from opwise.profiling import cupti, machine_code

needs("asv_runner")
ROOT = Path(__file__).resolve().parents[1]
KEYS = [("softmax", backend, shape, "float16") for backend in ("triton_jit", "numba_cuda") for shape in ("1823x781", "4096x4096")]
history = script("history")


@pytest.fixture(autouse=True)
def _suite_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


class Sweeps:
    """timed_cells of one commit after another, on a GPU that is made up: a cell's time is what `times` says, `code` its machine code."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.timed, self.order, self.carried = (importlib.import_module(f"benchmarks.{name}") for name in ("_timed", "_order", "_carried"))
        self.folder = folder
        self.versions = {"torch": "2.11", "triton": "3.6", "driver": "580"}
        self.source, self.code, self.us = "s1", "c1", 20.0
        self.measured: list[tuple[str, ...]] = []
        monkeypatch.setattr("opwise.runner.survey.default_device", lambda: "cuda:0")
        monkeypatch.setattr(self.timed, "_versions", lambda device: self.versions)
        monkeypatch.setattr(self.timed, "_source", lambda backend, op: self.source)
        monkeypatch.setattr(self.timed, "_codes", lambda keys, device, order: dict.fromkeys(keys, self.code))
        monkeypatch.setattr(self.timed, "_measured", self._measured)
        monkeypatch.setattr(self.carried, "CONTROL", 1)

    def _measured(self, keys: list[tuple[str, ...]], device: str, order: Any) -> dict[tuple[str, ...], dict[str, Any]]:
        self.measured = list(keys)
        time = {"samples": [self.us * 1e-6], "number": 1}
        return {key: {"status": "ok", "reason": "", "kernel_cold": time, "call_cost": time} for key in keys}

    def sweep(self, commit: str, **more: Any) -> tuple[dict[tuple[str, ...], dict[str, Any]], str]:
        said = self.folder / "said"
        said.write_text("")
        order = self.order.Order(tuple(KEYS), (), commit, store=self.folder / "store", progress=said)
        return self.timed.timed_cells(order if not more else type(order)(**{**order.__dict__, **more})), said.read_text()


@pytest.fixture
def sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweeps:
    return Sweeps(tmp_path, monkeypatch)


def test_a_commit_with_the_same_sources_measures_the_control_alone_and_says_what_it_found(sweeps: Sweeps) -> None:
    first, _ = sweeps.sweep("a" * 40)
    assert sweeps.measured == KEYS
    assert all(cell["carried"] == 0 for cell in first.values())
    sweeps.us = 21.0
    second, said = sweeps.sweep("b" * 40)
    assert len(sweeps.measured) == 1
    assert [second[key]["carried"] for key in KEYS].count(1) == 3
    assert all(second[key]["kernel_cold"]["samples"] == [(21.0 if key in sweeps.measured else 20.0) * 1e-6] for key in KEYS)
    assert "3 of 4 cells are carried over, 1 are measured" in said
    assert "control: 1 cells that were carried over, measured again: +5.0% to +5.0%" in said
    again = sweeps.measured
    sweeps.sweep("c" * 40)
    assert sweeps.measured == again, "the control is the same in every sweep"


def test_the_same_machine_code_of_other_sources_is_carried_over_but_for_its_call_cost(sweeps: Sweeps) -> None:
    sweeps.sweep("a" * 40)
    sweeps.source = "s2"
    found, _ = sweeps.sweep("b" * 40)
    assert len(sweeps.measured) == 1
    assert all(("call_cost" in found[key]) == (key in sweeps.measured) for key in KEYS)


@pytest.mark.parametrize(
    "change",
    [
        {"source": "s2", "code": "c2"},
        {"source": "s2", "code": ""},
        {"source": "s2", "versions": {"torch": "2.12", "triton": "3.6", "driver": "580"}},
        {"source": "s2", "versions": {"torch": "2.11", "triton": "3.6", "driver": "590"}},
    ],
    ids=["code", "code-unknown", "torch", "driver"],
)
def test_whatever_changed_is_measured(sweeps: Sweeps, change: dict[str, Any]) -> None:
    sweeps.sweep("a" * 40)
    for name, value in change.items():
        setattr(sweeps, name, value)
    found, _ = sweeps.sweep("b" * 40)
    assert sweeps.measured == KEYS
    assert all(cell["carried"] == 0 for cell in found.values())


def test_what_is_compared_or_quick_is_measured_and_not_kept(sweeps: Sweeps) -> None:
    sweeps.sweep("a" * 40)
    sweeps.sweep("b" * 40, store=None)
    assert sweeps.measured == KEYS
    assert [path.name for path in (sweeps.folder / "store").iterdir()] == ["aaaaaaaa.json.gz"]
    sweeps.sweep("b" * 40, store=None, quick=True)
    assert {key[2] for key in sweeps.measured} == {"1823x781"}, "one shape an op"


def test_a_figure_is_carried_from_where_it_was_measured_however_long_ago(sweeps: Sweeps) -> None:
    for commit in "abc":
        sweeps.sweep(commit * 40)
    store = sweeps.carried.Store(sweeps.folder / "store", "d" * 40, sweeps.versions)
    origins = {store.find(key, "s1")[0][0] for key in KEYS}
    assert "a" in origins
    assert all(
        "figures" in cell or cell["carried"][0] == "a"
        for cell in sweeps.carried.read(sweeps.folder / "store/cccccccc.json.gz")["cells"].values()
    )


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Two kernels of one name, as Triton's specialisations are: of three parameters, and of one."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).is_file():
        pytest.skip("no nvcc here to make a cubin with")
    folder = tmp_path_factory.mktemp("cubin")
    found = []
    for parameters, body in (("float *x, long long n, int by", "if (threadIdx.x < n) x[threadIdx.x] *= by;"), ("float *x", "*x = 1;")):
        (folder / "k.cu").write_text(f'extern "C" __global__ void scale({parameters}) {{ {body} }}')
        subprocess.run([nvcc, "-arch=sm_90a", "-cubin", "k.cu", "-o", "k.cubin"], cwd=folder, check=True)
        found.append((folder / "k.cubin").read_bytes())
    return found


class Library:
    """libcupti as far as machine_code asks it: it takes one subscriber, and `launch` calls it as the driver would."""

    def cuptiSubscribe(self, subscriber: Any, callback: Any, _: Any) -> int:  # noqa: N802
        self.callback = callback
        return 0

    def cuptiEnableDomain(self, *_: Any) -> int:  # noqa: N802
        return 0

    def cuptiUnsubscribe(self, _: Any) -> int:  # noqa: N802
        return 0

    def load(self, cubin: bytes, what: int = machine_code.MODULE_LOADED) -> None:
        held = ctypes.create_string_buffer(cubin, len(cubin))
        module = machine_code.ModuleData(1, len(cubin), ctypes.addressof(held))
        data = machine_code.ResourceData(None, None, ctypes.addressof(module))
        self.callback(None, machine_code.RESOURCE, what, ctypes.addressof(data))

    def launch(self, kernel: str, address: int, n: int, by: int, blocks: int = 1, handle: int = 8) -> None:
        held = (ctypes.c_int64(address), ctypes.c_int64(n), ctypes.c_int32(by))
        values = (ctypes.c_void_p * 3)(*map(ctypes.addressof, held))
        given = machine_code.LaunchParameters(handle, (ctypes.c_uint * 6)(blocks, 1, 1, 128, 1, 1), 0, None, values)
        call = cupti.CallbackData(cupti.ENTER, b"cuLaunchKernel", ctypes.addressof(given), None, kernel.encode())
        self.callback(None, cupti.DRIVER_API, 1, ctypes.addressof(call))


def test_a_digest_is_of_code_launch_and_scalars_and_not_of_addresses(cubins: list[bytes]) -> None:
    library = Library()
    with machine_code.watching(library) as seen:  # type: ignore[arg-type]
        library.load(cubins[0])
        for given in ({}, {"address": 0x7F0000001000}, {"n": 99}, {"blocks": 2}):
            library.launch("scale", **{"address": 0x7F0000000000, "n": 100, "by": 3, **given})
        library.launch("unseen", address=1, n=1, by=1, handle=9)
    same, moved, other_n, other_grid, unseen = (seen.digest([launch]) for launch in seen.launches)
    assert same == moved != ""
    assert len({same, other_n, other_grid}) == 3
    assert unseen == "", "a kernel whose code was not seen has no digest, so that its cell is measured"


def test_kernels_of_one_name_are_told_apart_by_their_handles(cubins: list[bytes]) -> None:
    library, (one, other) = Library(), cubins
    given = {"address": 0x7F0000000000, "n": 100, "by": 3}
    with machine_code.watching(library) as seen:  # type: ignore[arg-type]
        library.load(one)
        library.launch("scale", handle=8, **given)
        library.load(other)
        library.launch("scale", handle=16, **given)
        library.launch("scale", handle=8, **given)
        library.load(one, machine_code.MODULE_UNLOADED)
        library.load(other)
        library.launch("scale", handle=8, **given)
        library.load(one)
        library.load(other)
        library.launch("scale", handle=24, **given)
    first, second, again, taken_over, either = (seen.digest([launch]) for launch in seen.launches)
    assert first == again != second
    assert taken_over == second
    assert either == "", "of two that were loaded and not launched it cannot be told which it is"


@pytest.mark.parametrize(("count", "expected"), [(1, [0]), (2, [0, 9]), (4, [0, 3, 6, 9]), (99, list(range(10)))])
def test_commits_are_spread_evenly_from_the_newest_to_the_first(count: int, expected: list[int]) -> None:
    assert history.spread(range(10), count) == expected


def test_what_was_measured_keeps_its_place_when_commits_are_added() -> None:
    before = history.spread(range(100), 10)
    after = history.spread(range(-3, 100), 10, before)
    assert after[0] == -3, "the newest is measured"
    assert len(set(after) - set(before)) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "nothing changed: the same machine code and libraries"),
        ({"source": "s2"}, "nothing changed: the same machine code and libraries"),
        ({"source": "s2", "code": "c2"}, "changed: the machine code"),
        ({"torch": "2.12"}, "changed: libraries: torch 2.11 -> 2.12; not the machine code"),
        ({"source": "s2", "code": ""}, "changed: the sources; machine code unknown"),
    ],
    ids=str,
)
def test_an_entry_of_the_regressions_says_what_changed(change: dict[str, str], said: str) -> None:
    def kept(source: str = "s1", code: str = "c1", torch: str = "2.11") -> dict[str, Any]:
        return {"versions": {"torch": torch}, "cells": {"mean/cupy_raw/8192x8192/float16": {"source": source, "code": code}}}

    causes = script("asv_causes", ROOT)
    cell = causes.cell_of("mean.Mean.track_kernel_cold('cupy_raw', '8192x8192', 'float16')")
    assert causes.cause(kept(), kept(**change), cell) == said
    assert causes.cause(None, kept(), cell) == "what changed was not recorded"


def test_a_commit_is_measured_once_it_has_all_benchmarks_that_are_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "RESULTS", tmp_path)
    names = ("square.Square.track_kernel_cold", "square.Compiled.track_registers", "mean.Compiled.track_registers", "calls.Calls.time_call")
    (tmp_path / "benchmarks.json").write_text(json.dumps({name: {} for name in names} | {"version": 2}))
    (tmp_path / "gpu").mkdir()
    for commit, kept in {"a" * 8: names, "b" * 8: names[:1]}.items():
        (tmp_path / "gpu" / f"{commit}-env.json").write_text(json.dumps({"results": dict.fromkeys(kept), "durations": {"sweep": 9.0}}))
    everything = history.wanted("gpu", [])
    assert history.measured("gpu", everything) == {"a" * 8: (True, 9.0), "b" * 8: (False, 9.0)}
    assert history.wanted("compile-only", []) == set(names[1:3]), "without a GPU compilers alone are asked"
    assert history.wanted("gpu", [history.KERNELS_TIMES]) == {names[0]}
    narrow = history.wanted("gpu", [r"square.Square.*\(.*float16"])
    assert history.measured("gpu", narrow)["b" * 8] == (True, 9.0)
