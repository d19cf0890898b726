"""What installed packages add by entry points: there by name, imported on use, checked like all others; a clash names both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from opwise.ops import OURS, _checked
from opwise.ops.installed import NameClash, Table, offered

SOURCE = Path(__file__).resolve().parents[1] / "src"
CUBE = """
from dataclasses import replace
from opwise.ops.spec import Workload
from opwise.ops.square import SQUARE, UNIT_ROUNDOFF, LEAST_SUBNORMAL

CUBE = replace(SQUARE, name="cube", summary="x * x * x", reference=lambda x: x * x * x,
    error_bound=lambda w, r, x: 3 * UNIT_ROUNDOFF[w.torch_dtype] * r.abs() + 2 * LEAST_SUBNORMAL[w.torch_dtype],
    hard_inputs=SQUARE.make_inputs,
    workloads={name: (Workload("cube", (33,), "float32"),) for name in SQUARE.workloads})
"""
PLAIN = """
import torch
from opwise.backends.protocol import Probe, Variant

def probe(device):
    return Probe({"plain": "1.0"}, stand_in="cpu")

def _bound(function):
    def bind(x, out):
        return lambda: function(x, out)
    return lambda x, out: bind

def variants(op):
    kernels = {"cube": lambda x, out: torch.mul(x * x, x, out=out), "square": lambda x, out: torch.mul(x, x, out=out)}
    return {"": Variant(_bound(kernels[op]), "plain torch")} if op in kernels else {}
"""


def package(folder: Path, name: str, entry_points: str, **modules: str) -> Path:
    """A package as pip would have installed it."""
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    return folder


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(folder)]), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, timeout=120, check=False)


@pytest.mark.slow
def test_an_op_and_a_backend_of_a_package_are_checked_like_all_others(tmp_path: Path) -> None:
    package(tmp_path, "more-kernels", "[opwise.ops]\ncube = more_cube:CUBE\n[opwise.backends]\nplain = more_plain\n",
            more_cube=CUBE, more_plain=PLAIN)  # fmt: skip
    lazy = "import sys, opwise; print('cube' in opwise.OPS, 'plain' in opwise.BACKENDS, {'more_cube', 'more_plain'} & set(sys.modules))"
    assert run(tmp_path, "-c", lazy).stdout.strip() == "True True set()", "nothing is imported before it is used"
    done = run(tmp_path, "-m", "opwise", "check", "cube/33/float32", "square/33/float32", "plain", "--json")
    assert done.returncode == 0, done.stderr
    found = {(r["backend"], r["op"]): r["status"] for r in map(json.loads, done.stdout.splitlines())}
    assert found == {("plain", "cube"): "ok", ("plain", "square"): "ok"}


KERNELS = """
from opwise.backends.torch_eager.eager import expression
VARIANTS = {"": expression(lambda x: x * x * x, "x * x * x")}
"""
UNIT = 'extern "C" __global__ void cube_float32(const float *x, float *out, long long n) {}'
FOUND = """
import sys, torch, opwise
from opwise.backends import implementations
from opwise.backends.cuda_src.sources import units, unit_of
cpu = torch.device("cpu")
assert "more_kernels" not in sys.modules and not any(name.endswith(".cube") for name in sys.modules)
assert opwise.implementation("torch_eager/cube", cpu)(torch.tensor([2.0])).item() == 8
assert "cube_float32" in units("sm_80")["cube"] and unit_of("cube_float32") == "cube"
assert not implementations("cupy_raw", "cube", "cpu") and "" in implementations("cupy_raw", "square", "cpu")
try:
    opwise.implementation("triton_jit/cube", cpu)(torch.tensor([2.0]))
except RuntimeError as error:
    print(error)
print(opwise.implementation("triton_jit/square", cpu)(torch.tensor([3.0])).item())
"""


def test_a_package_s_kernels_are_their_backend_s_and_broken_ones_cost_their_own_cells(tmp_path: Path) -> None:
    entries = "torch_eager/cube = more_kernels\ntriton_jit/cube = broken_kernels\ncuda_src/cube = more_kernels\n"
    package(tmp_path, "more-kernels", f"[opwise.ops]\ncube = more_cube:CUBE\n[opwise.kernels]\n{entries}",
            more_cube=CUBE, more_kernels=KERNELS, broken_kernels="import no_such_library")  # fmt: skip
    (tmp_path / "cube.cu").write_text(UNIT)
    done = run(tmp_path, "-c", FOUND)
    assert done.returncode == 0, done.stderr
    assert "broken_kernels cannot be imported: ModuleNotFoundError: No module named 'no_such_library'" in done.stdout
    assert done.stdout.splitlines()[-1] == "9.0", "the backend itself is none the worse"
    told = "from opwise import provenance as p; print([x.name for x in p.sources('torch_eager', 'cube') if x.parent.name != 'torch_eager'])"
    assert {"more_cube.py", "more_kernels.py"} <= set(run(tmp_path, "-c", told).stdout.strip("[]\n").replace("'", "").split(", "))


@pytest.mark.parametrize(
    ("group", "entry"),
    [
        ("opwise.backends", "triton_jit = more_plain"),
        ("opwise.ops", "softmax = more_cube:CUBE"),
        ("opwise.kernels", "triton_jit/softmax = more_kernels"),
    ],
)
def test_a_name_of_opwise_s_own_is_refused_by_both_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, entry: str) -> None:
    monkeypatch.syspath_prepend(package(tmp_path, "greedy", f"[{group}]\n{entry}\n"))
    name, target = entry.split(" = ")
    with pytest.raises(NameClash) as caught:
        offered(group, {name: f"{group}.{name}"})
    assert all(part in str(caught.value) for part in (name, f"opwise ({group}.{name})", f"greedy 1.0 ({target})", "uninstall"))


def test_two_packages_with_one_name_are_refused_by_both_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        monkeypatch.syspath_prepend(package(tmp_path / name, name, f"[opwise.backends]\nfast = {name}.kernels\n"))
    with pytest.raises(NameClash, match=r"first 1.0 \(first.kernels\) and second 1.0 \(second.kernels\)"):
        offered("opwise.backends", {})


def test_a_table_loads_on_use_and_once() -> None:
    point = EntryPoint("big", "builtins:dict", "opwise.ops")
    loaded = []
    table: Table[object] = Table({"small": 1}, {"big": point}, lambda point, value: loaded.append(point) or value)  # type: ignore[func-returns-value]
    assert (list(table), len(table), "big" in table, loaded) == (["small", "big"], 2, True, [])
    assert table["big"] is dict is table["big"]
    assert loaded == [point]
    with pytest.raises(KeyError):
        table["none"]


@pytest.mark.parametrize("value", [OURS["square"], 3])
def test_what_is_no_op_of_its_name_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"cube = m:CUBE .* leads to"):
        _checked(EntryPoint("cube", "m:CUBE", "opwise.ops"), value)
