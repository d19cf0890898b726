"""What is tested beside opwise's own tests, which take the op up by its name: a bound that mutants fail and right kernels keep, and where
the op shows."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import opwise_rmsnorm
import pytest
import torch
from opwise_rmsnorm.op import EPS, RMSNORM
from torch import Tensor

from opwise import provenance
from opwise.backends import implementation, implementations
from opwise.backends.protocol import BackendUnavailable
from opwise.measure.sameness import by_rows
from opwise.measure.validate import Verdict, judge
from opwise.ops import OPS, Workload

CPU = torch.device("cpu")
BACKENDS = ("torch_eager", "torch_inline", "cupy_raw", "triton_jit")
PLUGIN = Path(__file__).resolve().parents[1]
SHAPES = ((64, 130), (33, 1031), (8, 4099))
KINDS = (RMSNORM.make_inputs, RMSNORM.hard_inputs, RMSNORM.whole_inputs)
each_dtype = pytest.mark.parametrize("dtype", RMSNORM.dtypes)


def scaled(x: Tensor, weight: Tensor, mean: Tensor) -> Tensor:
    return x * torch.rsqrt(mean + EPS) * weight


def right(x: Tensor, weight: Tensor) -> Tensor:
    return scaled(x, weight, x.square().mean(-1, keepdim=True))


def in_chains(x: Tensor, weight: Tensor) -> Tensor:
    """512 accumulators, each taking its terms one after the other, as the kernels do."""
    sums = torch.zeros(x.shape[0], 512)
    for part in x.square().split(512, dim=1):
        sums[:, : part.shape[1]] += part
    return scaled(x, weight, sums.sum(-1, keepdim=True) / x.shape[1])


def accumulated_in(dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
    def kernel(x: Tensor, weight: Tensor) -> Tensor:
        total = torch.zeros(x.shape[0], dtype=dtype)
        for column in x.square().unbind(1):
            total = (total.float() + column).to(dtype)
        return scaled(x, weight, total.float()[:, None] / x.shape[1])

    return kernel


MUTANTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the last column left out": lambda x, w: scaled(x, w, x[:, :-1].square().sum(-1, keepdim=True) / x.shape[1]),
    "the first column left out": lambda x, w: scaled(x, w, x[:, 1:].square().sum(-1, keepdim=True) / x.shape[1]),
    "eps left out": lambda x, w: x * torch.rsqrt(x.square().mean(-1, keepdim=True)) * w,
    "another eps": lambda x, w: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * w,
    "eps outside of the root": lambda x, w: x / (x.square().mean(-1, keepdim=True).sqrt() + EPS) * w,
    "the other axis": lambda x, w: scaled(x, w, x.square().mean(0, keepdim=True)),
    "no weight": lambda x, w: right(x, torch.ones_like(w)),
    "the neighbour's weight": lambda x, w: right(x, w.roll(1)),
    "the sum for the mean": lambda x, w: scaled(x, w, x.square().sum(-1, keepdim=True)),
    "the mean taken off": lambda x, w: scaled(x, w, x.var(-1, keepdim=True, correction=0)),
    "a float16 accumulator": accumulated_in(torch.float16),
    "a bfloat16 accumulator": accumulated_in(torch.bfloat16),
}


def verdict(kernel: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, int], dtype: str, kind: int, seed: int) -> Verdict:
    workload = Workload("rmsnorm", shape, dtype)
    inputs = KINDS[kind](workload, CPU, seed)
    wide = [x.double() for x in inputs]
    reference = RMSNORM.reference(*wide)
    out = kernel(*(x.float() for x in inputs)).to(workload.torch_dtype)
    return judge(out, reference, RMSNORM.error_bound(workload, reference, *wide))


@each_dtype
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_fails_at_every_shape(mutant: str, dtype: str) -> None:
    for shape in SHAPES:
        assert not all(verdict(MUTANTS[mutant], shape, dtype, kind, 1).ok for kind in range(3)), shape


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_result_that_is_rounded_before_the_weight_fails(dtype: str) -> None:
    """As much of models' code has it: two roundings."""
    storage = Workload("rmsnorm", (), dtype).torch_dtype
    twice = lambda x, w: right(x, torch.ones_like(w)).to(storage).float() * w  # noqa: E731
    assert not any(verdict(twice, shape, dtype, 0, 1).ok for shape in SHAPES)


@each_dtype
@pytest.mark.parametrize("kernel", [right, in_chains])
def test_right_kernels_keep_the_bound_over_many_seeds(kernel: Callable[[Tensor, Tensor], Tensor], dtype: str) -> None:
    errors = [verdict(kernel, shape, dtype, kind, seed).error_ratio for shape in SHAPES for kind in range(3) for seed in range(40)]
    assert 0.1 < max(errors) < (0.3 if dtype == "float32" else 1.0), "float32 has room for other orders, and not much"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_it_is_torch_s_rms_norm(dtype: torch.dtype) -> None:
    x, weight = RMSNORM.make_inputs(Workload("rmsnorm", (5, 33), str(dtype).removeprefix("torch.")), CPU, 1)
    expected = torch.nn.functional.rms_norm(x.double(), (33,), weight.double(), EPS)
    assert torch.allclose(RMSNORM.reference(x.double(), weight.double()), expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_has_it_and_says_so_in_its_sources(backend: str) -> None:
    try:
        found = implementations(backend, "rmsnorm", "cpu")
    except BackendUnavailable as missing:
        pytest.skip(str(missing))
    assert found[""].op is OPS["rmsnorm"] is RMSNORM
    package = Path(str(opwise_rmsnorm.__file__)).resolve().parent
    named = {path for path in provenance.sources(backend, "rmsnorm") if package in path.parents}
    assert named == {path for path in package.iterdir() if path.is_file()}
    assert provenance.source(backend, "rmsnorm") != provenance.source(backend, "softmax")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_is_the_same_in_any_batch(backend: str) -> None:
    workload = Workload("rmsnorm", (9, 65), "float16")
    assert by_rows(RMSNORM, workload), "which has `opwise run --facts` ask the same on a GPU"
    try:
        found = implementation(f"{backend}/rmsnorm", CPU)
    except BackendUnavailable as missing:
        pytest.skip(str(missing))
    x, weight = RMSNORM.make_inputs(workload, CPU, 1)
    whole = found(x, weight)
    assert all(torch.equal(found(x[i : i + 1].clone(), weight)[0], whole[i]) for i in range(9))


def test_the_benchmarks_of_asv_have_all_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGIN.parents[1]))
    axes = importlib.import_module("benchmarks._parameters")
    monkeypatch.setattr(axes, "SHAPES", dict(axes.SHAPES))
    spec = importlib.util.spec_from_file_location("rmsnorm_benchmarks", PLUGIN / "benchmarks" / "rmsnorm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.Rmsnorm.params == [axes.BACKENDS, axes.SHAPES["rmsnorm"], list(RMSNORM.dtypes)]
    assert all(Workload.parse(f"rmsnorm/{shape}/float32").shape for shape in axes.SHAPES["rmsnorm"])


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}
    run = [sys.executable, "-m", "opwise", *arguments]
    return subprocess.run(run, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)


def test_the_commands_know_it(tmp_path: Path) -> None:
    done = command(tmp_path, "run", "rmsnorm/7x130/float16")
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "results").rglob("*.jsonl")
    records = [record for record in map(json.loads, run.read_text().splitlines()) if "backend" in record]
    found = {record["backend"]: record["status"] for record in records}
    assert {backend: found.get(backend) for backend in BACKENDS} == dict.fromkeys(BACKENDS, "ok")
    done = command(tmp_path, "report", str(run), "-o", "page.html")
    assert done.returncode == 0, done.stderr
    assert "rmsnorm/7x130/float16" in (tmp_path / "page.html").read_text()
    done = command(tmp_path, "choose", "rmsnorm", "--shape", "4096x4096", "--dtype", "float16", "--device", "nvidia-h100-80gb-hbm3")
    assert done.returncode == 1
    assert "no stream time of rmsnorm in float16" in done.stderr


def test_its_entry_points_lead_somewhere() -> None:
    points = [p for group in ("opwise.ops", "opwise.kernels") for p in entry_points(group=group) if "rmsnorm" in p.name]
    assert len(points) == 6
    assert all(importlib.util.find_spec(point.module) for point in points)
