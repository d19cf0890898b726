"""The profiler beside the clock on a GPU: kernel times of `opwise profile` are those of `opwise run`, for every op in every backend."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import support
import torch
from typer.testing import CliRunner

from opwise.backends import BACKENDS
from opwise.cli import app
from opwise.measure.timing import Clock
from opwise.ops import OPS
from opwise.ops.spec import OpSpec, Workload
from opwise.profiling import rows
from opwise.profiling import trace as reading
from opwise.profiling.capture import capture
from opwise.profiling.repeated import repeat, sets_of
from opwise.runner import Worker

pytestmark = support.gpu_alone("kernels, their grids and their times are a GPU's own")
AGREE = 0.03
MOST_FLOPS = 10**11  # larger products are limited by power, and a candidate alone has another clock than five in turns


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock(support.DEVICE)


def kernel_bound(spec: OpSpec) -> Workload:
    """The most bytes of those that power does not limit: hundreds of microseconds, beside which an event pair's one is nothing."""
    return max((w for w in spec.workloads["core"] if spec.cost(w).flops < MOST_FLOPS), key=lambda w: spec.cost(w).bytes)


@pytest.mark.parametrize("op", OPS)
def test_the_profiler_agrees_with_the_clock(op: str, clock: Clock, roomy: None, record_property: Callable[[str, object], None]) -> None:
    spec = OPS[op]
    workload = kernel_bound(spec)
    found = {c.backend: c.get() for c in support.candidates() if c.op == op and not c.variant and c.backend not in support.WITHOUT}
    assert found, f"no backend has {op} here"
    sets = clock.rotation(spec.cost(workload).bytes)
    launches = {}
    with workload.precision(), torch.no_grad():
        inputs = [spec.make_inputs(workload, support.DEVICE, seed) for seed in range(sets)]
        for name, implementation in found.items():
            launches[name] = [implementation.prepare(*x, out=spec.empty_output(*x)) for x in inputs]
        cold = clock.cold(launches)
    assert set(cold) == set(found), clock.refusals
    del inputs, launches
    wrong = []
    for name, implementation in found.items():
        trace = capture(
            implementation.name, workload, support.DEVICE, calls=2, then=lambda stages: repeat(clock.queue, sets_of(stages, sets))
        )
        assert not reading.problems(trace)
        kernels, whole = rows.kernels(trace)
        assert {k.heat for k in kernels} == {"cold", "warm"}, f"{name}: the trace has {sorted({k.name for k in kernels})}"
        assert all(k.grid and k.block and k.registers for k in kernels if not k.name.startswith("Mem")), kernels
        ratio = whole[0].device_us / cold[name].median_us
        told = f"the clock says {cold[name].median_us:.2f} us, the profiler {whole[0].device_us:.2f} ({ratio - 1:+.2%})"
        record_property(f"{implementation.name} at {workload}", told)  # in the report of --junitxml
        if abs(ratio - 1) > AGREE:
            wrong.append(f"{name}: {told}")
    assert not wrong, f"{workload}: " + "; ".join(wrong)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One for all commands: starting it, importing torch and setting up CUDA takes several times as long as a profile does."""
    with Worker(str(support.DEVICE)) as started:
        yield started


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_command_shows_the_kernels_of_every_backend(backend: str, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opwise.commands.profile.Worker", lambda *device: nullcontext(worker))
    next(c for c in support.candidates() if c.backend == backend and c.op == "softmax").get()
    result = CliRunner(env={"TERM": "dumb"}).invoke(app, ["profile", f"{backend}/softmax", "4096x4096/float16", "--memory", "--json"])
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["record"]["status"] == "ok"
    assert {row["heat"] for row in data["kernels"]} == {"cold", "warm"}
    assert all(row["api_us"] is not None for row in data["kernels"]), "a launch is not recorded"
    assert {row["heat"]: row["count"] for row in data["launches"]}.keys() == {"cold", "warm"}
    assert abs(data["cold_profiler_over_clock"]) < 0.1  # 18 us: the gap between two nodes of a graph is 3 % of it
    assert any(row["device"] == "GPU" and row["bytes"] == 4096 * 4096 * 2 for row in data["allocations"])
