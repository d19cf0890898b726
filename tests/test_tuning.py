"""Tuned tables: what is stored comes back, counts where it was measured alone, decides what plans take, and is proven before it does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from plans import kernel_for
from recorded_runs import TOY, cell
from tuned_tables import FACTS, known_ways, row, table

from opwise import provenance
from opwise.backends import tuned, tuned_table
from opwise.backends.cuda_src import matmul
from opwise.backends.tuned import Choices
from opwise.backends.tuned_table import Elsewhere, Table, TornTable
from opwise.choosing.store import stale
from opwise.ops.spec import Workload
from opwise.tuning import standing
from opwise.tuning.cuda_matmul import _launched
from opwise.tuning.ways import H200

GPU = torch.device("cuda", 0)
CUDA, MEAN = "cuda_src/matmul", "triton_jit/mean"
SQUARES = row("matmul/4096x4096x4096/float16", "128x256", {"128x256": 200.0, "128x192": 190.0})


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of tables, and the toy GPU in this machine."""
    monkeypatch.setenv(tuned_table.VARIABLE, str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: TOY.device)
    monkeypatch.setattr(tuned, "_facts", lambda index: FACTS)
    tuned._stored.cache_clear()
    yield tmp_path
    tuned._stored.cache_clear()


# -- what is stored ----------------------------------------------------------------------------------------------------------


def test_a_table_comes_back_as_it_was_and_a_torn_one_is_refused(tmp_path: Path) -> None:
    rule = Elsewhere("fitted", 1.01, 1.05, {"128x192": {"speed": 1.9, "fixed": 60.0}})
    made = table(CUDA, SQUARES, replace(SQUARES, workload="matmul/8x8x8/float16", sizes=(8, 8, 8), refused={"x": "wrong: 3"}),
                 elsewhere={"16-bit": rule})  # fmt: skip
    path = tuned_table.write(made, tmp_path)
    assert tuned_table.read(path) == made
    assert [p.name for p in path.parent.iterdir()] == ["cuda_src-matmul.json"], "nothing half-written is left"
    whole = path.read_text()
    data = json.loads(whole)
    data["rows"][0]["times"].pop(data["rows"][0]["chosen"])
    for broken in (whole[:-40], "", "[]", whole.replace('"schema": 1', '"schema": 99'), json.dumps(data)):
        path.write_text(broken)
        with pytest.raises(TornTable, match="is no whole table.*opwise tune"):
            tuned_table.read(path)


def test_the_digest_tells_which_kernels_run_and_nothing_else() -> None:
    made = table(CUDA, SQUARES)
    again = replace(SQUARES, times={name: replace(t, us=t.us * 1.01) for name, t in SQUARES.times.items()})
    assert table(CUDA, again, driver="2.0").digest == made.digest
    others = [
        table(CUDA, replace(SQUARES, chosen="128x256")),
        table(CUDA, SQUARES, elsewhere={"16-bit": Elsewhere("nearest", 1.0, 1.1)}),
        table(CUDA, SQUARES, elsewhere={"16-bit": Elsewhere("fitted", 1.0, 1.1, {"128x256": {"speed": 2.0}})}),
        table(CUDA, SQUARES, elsewhere={"16-bit": Elsewhere("fitted", 1.0, 1.1, {"128x256": {"speed": 2.1}})}),
    ]
    assert len({made.digest, *(other.digest for other in others)}) == 5


# -- where it counts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"driver": "0.9"}, "driver 0.9 then, 1.0 now"),
        ({"versions": {"nvrtc": "12.9"}}, "nvrtc 12.9 then, 13.0 now"),
        ({"source": "0" * 16}, "the kernels' sources have changed since"),
        ({"capability": "9.0"}, "compute capability 9.0 then, 8.6 now"),
    ],
)
def test_a_table_that_does_not_fit_is_not_used_and_says_so(root: Path, changed: dict[str, Any], says: str) -> None:
    tuned_table.write(table(CUDA, SQUARES, **changed), root)
    with pytest.warns(UserWarning, match="is not used") as told:
        assert tuned.look(CUDA, GPU) is tuned.SHIPPED
    assert says in str(told[0].message)
    assert str(told[0].message).endswith("opwise tune matmul measures it anew")
    assert tuned.look(CUDA, GPU) is tuned.SHIPPED, "and is told once"
    assert tuned.in_force("cupy_raw", "matmul", GPU) == "" == standing.in_force("cupy_raw", "matmul", FACTS)
    assert standing.told(FACTS) == [str(told[0].message)]


def test_a_torn_table_is_reported_and_not_used(root: Path) -> None:
    path = tuned_table.write(table(CUDA, SQUARES), root)
    path.write_text(path.read_text()[:200])
    with pytest.warns(UserWarning, match="is no whole table"):
        assert tuned.look(CUDA, GPU) is tuned.SHIPPED


def test_a_record_says_which_tables_were_in_force_and_is_stale_without_them(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = table(CUDA, SQUARES)
    tuned_table.write(made, root)
    assert [provenance.tables(b, "matmul", GPU) for b in ("cupy_raw", "torch_inline", "triton_jit")] == [made.digest, made.digest, ""]
    assert provenance.tables("cupy_raw", "matmul", torch.device("cpu")) == ""
    source = provenance.source("cupy_raw", "matmul", made.digest)
    assert source != provenance.source("cupy_raw", "matmul")
    record = cell("cupy_raw", 1.0, op="matmul", shape=(8, 8, 8), versions=FACTS["versions"], source=source, tuned=made.digest)
    plain = replace(record, source=provenance.source("cupy_raw", "matmul"), tuned="")
    assert stale(record, FACTS) == ""
    assert stale(record, None) == "", "elsewhere nobody knows which tables are there"
    assert "sources have changed" in stale(replace(record, tuned=""), None)
    assert stale(plain, FACTS) == f"taken with the shipped tables, tuned tables {made.digest} in force now"
    monkeypatch.setenv(tuned_table.VARIABLE, tuned_table.OFF)
    assert stale(record, FACTS) == f"taken with tuned tables {made.digest}, the shipped tables in force now"
    assert stale(plain, FACTS) == ""


# -- what plans take ---------------------------------------------------------------------------------------------------------


def test_the_cuda_plan_takes_what_was_measured_and_what_was_fitted() -> None:
    def kernel(table_: Table | None, *, wgmma: bool = True, m: int = 4096) -> str:
        return kernel_for("float16", m, 4096, 4096, wgmma=wgmma, choices=Choices(table_))

    shipped = kernel(None)
    assert shipped != "matmul_wgmma_float16_128x64"
    measured = table(CUDA, row("matmul/4096x4096x4096/float16", "128x256", {"128x64": 1.0, "128x256": 2.0}))
    assert kernel(measured) == "matmul_wgmma_float16_128x64"
    assert kernel(measured, m=2048) == kernel(None, m=2048), "other sizes have no rule"
    assert kernel(measured, wgmma=False) == kernel(None, wgmma=False), "what cannot be had is not taken"
    fitted = table(CUDA, elsewhere={"16-bit": Elsewhere("fitted", 1.0, 1.1, {"128x64": {"speed": 99.0, "fixed": 0.5}})})
    assert kernel(fitted, m=2048) == "matmul_wgmma_float16_128x64"
    with pytest.raises(tuned.NoSuchConfiguration, match="no_such is not among what"):
        kernel_for("float16", 8, 8, 8, choices=Choices(forced="no_such"))


def test_the_triton_plan_takes_a_trial_where_it_was_measured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    known_ways("triton_jit/matmul")
    from opwise.backends.triton_jit.matmul import HALF_CONFIGS, configurations, cost

    monkeypatch.setattr(cost, "processors", lambda device: H200.processors)
    trials = configurations.TRIALS["16-bit"]
    trial, x = trials[0].name, torch.empty(1, dtype=torch.float16, device="meta")

    def taken(size: int, *rows: Any, **rule: Elsewhere) -> str:
        made = Choices(table("triton_jit/matmul", *rows, elsewhere={"16-bit": rule["rule"]} if rule else {}))
        monkeypatch.setattr(cost, "look", lambda name, device: made)
        return cost.quickest(HALF_CONFIGS, size, size, size, x).name

    shipped = taken(4096)
    assert shipped != trial
    measured = row("matmul/4096x4096x4096/float16", shipped, {shipped: 2.0, trial: 1.0})
    assert taken(4096, measured) == trial
    assert taken(2048, measured) == taken(2048)
    assert taken(2048, rule=Elsewhere("fitted", 1.0, 1.1, {trial: {"tile_us": 0.1, "k_ns": 0.1}})) == trial
    assert len({c.name for c in (*HALF_CONFIGS, *trials)}) == len((*HALF_CONFIGS, *trials))


def test_sizes_in_between_get_what_the_nearest_got() -> None:
    rows = [row(f"mean/{n}/float32", "512x4x4", {"512x4x4": 2.0, name: 1.0}) for n, name in ((1000, "256x2x4"), (64000, "1024x8x2"))]
    near = Choices(table(MEAN, *rows, elsewhere={"float32": Elsewhere("nearest", 1.0, 1.1)}))
    names = ("512x4x4", "256x2x4", "1024x8x2")
    assert [near.pick("float32", "float32", (n,), names) for n in (1, 7900, 8100, 10**9)] == ["256x2x4"] * 2 + ["1024x8x2"] * 2
    assert near.pick("float16", "float16", (1000,), names) is None
    assert Choices(table(MEAN, *rows)).pick("float32", "float32", (999,), names) is None
    assert Choices(table(MEAN, *rows)).pick("float32", "float32", (1000,), names) == "256x2x4"


@pytest.mark.parametrize("name", [CUDA, MEAN, "triton_jit/matmul"])
def test_what_is_measured_holds_what_the_plan_takes_by_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped choice of each workload, by the plan's own code, is one of the configurations; of each kernel there is one."""
    of = known_ways(name)
    assert set(of.workloads(quick=True)) < set(of.workloads(quick=False))
    for workload in of.workloads(quick=False):
        found = of.configurations(workload, H200)
        assert len(found) > 1
        assert of.choose(workload, H200) in found
        assert taken_by_the_plan(name, workload, monkeypatch) == of.choose(workload, H200)


def taken_by_the_plan(name: str, workload: Workload, monkeypatch: pytest.MonkeyPatch) -> str:
    tf32, x = workload.dtype == "tfloat32", torch.empty(workload.shape[0] if workload.op == "mean" else 1, dtype=workload.torch_dtype,
                                                        device="meta")  # fmt: skip
    if name == CUDA:
        m, k, n = workload.shape
        dtype = "float32" if tf32 else workload.dtype
        taken = matmul.plan(m, k, n, dtype, tf32, 16, H200.processors, H200.capability).kernel
        names = matmul.offered(m, k, n, workload.dtype, 16, H200.processors, H200.capability)
        by_kernel = {_launched(kernel, workload.dtype, m, k, n, H200.processors): name for name, kernel in names.items()}
        return by_kernel[taken]
    if name == MEAN:
        from opwise.backends.triton_jit import mean

        monkeypatch.setattr(mean, "processors", lambda device: H200.processors)
        return str(mean.tuned(x))
    from opwise.backends.triton_jit.matmul import HALF_CONFIGS, TF32_CONFIGS, cost

    monkeypatch.setattr(cost, "processors", lambda device: H200.processors)
    configs = TF32_CONFIGS if tf32 else HALF_CONFIGS
    m, k, n = workload.shape
    return cost.quickest(configs, m, n, k, x).name
