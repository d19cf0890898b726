"""Tuned tables: what is stored comes back, counts where it was measured alone, decides what plans take, and is proven before it does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_runs import TOY, cell
from tuned_tables import FACTS, row, rows_of, table

from opwise import provenance
from opwise.backends import tuned, tuned_table
from opwise.backends.cuda_src import matmul_plan
from opwise.backends.protocol import BackendUnavailable
from opwise.backends.tuned import Choices
from opwise.backends.tuned_table import TUNABLE, Elsewhere, Table, TornTable
from opwise.choosing.store import stale
from opwise.ops.spec import Workload
from opwise.tuning import standing
from opwise.tuning.cuda_matmul import _launched
from opwise.tuning.fitting import elsewhere
from opwise.tuning.ways import H200, Term, Ways, least_squares, ways

GPU = torch.device("cuda", 0)
CUDA, MEAN = "cuda_src/matmul", "triton_jit/mean"
SQUARES = row("matmul/4096x4096x4096/float16", "128x256", {"128x256": 200.0, "128x192": 190.0})
each_table = pytest.mark.parametrize("name", TUNABLE)


def known_ways(name: str) -> Ways:
    """Of Triton's tables where Triton is installed."""
    if name.startswith("triton"):
        from opwise.backends import triton_jit

        try:
            triton_jit.probe(torch.device("cpu"))
        except BackendUnavailable as error:
            pytest.skip(str(error))
    return ways(TUNABLE[name])


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
        return matmul_plan.plan(m, 4096, 4096, "float16", False, 16, 132, (9, 0), wgmma=wgmma, choices=Choices(table_)).kernel

    shipped = kernel(None)
    assert shipped != "matmul_wgmma_float16_128x64"
    measured = table(CUDA, row("matmul/4096x4096x4096/float16", "128x256", {"128x64": 1.0, "128x256": 2.0}))
    assert kernel(measured) == "matmul_wgmma_float16_128x64"
    assert kernel(measured, m=2048) == kernel(None, m=2048), "other sizes have no rule"
    assert kernel(measured, wgmma=False) == kernel(None, wgmma=False), "what cannot be had is not taken"
    fitted = table(CUDA, elsewhere={"16-bit": Elsewhere("fitted", 1.0, 1.1, {"128x64": {"speed": 99.0, "fixed": 0.5}})})
    assert kernel(fitted, m=2048) == "matmul_wgmma_float16_128x64"
    with pytest.raises(tuned.NoSuchConfiguration, match="no_such is not among what"):
        matmul_plan.plan(8, 8, 8, "float16", False, 16, 132, (9, 0), choices=Choices(forced="no_such"))


def test_sizes_in_between_get_what_the_nearest_got() -> None:
    rows = [row(f"mean/{n}/float32", "512x4x4", {"512x4x4": 2.0, name: 1.0}) for n, name in ((1000, "256x2x4"), (64000, "1024x8x2"))]
    near = Choices(table(MEAN, *rows, elsewhere={"float32": Elsewhere("nearest", 1.0, 1.1)}))
    names = ("512x4x4", "256x2x4", "1024x8x2")
    assert [near.pick("float32", "float32", (n,), names) for n in (1, 7900, 8100, 10**9)] == ["256x2x4"] * 2 + ["1024x8x2"] * 2
    assert near.pick("float16", "float16", (1000,), names) is None
    assert Choices(table(MEAN, *rows)).pick("float32", "float32", (999,), names) is None
    assert Choices(table(MEAN, *rows)).pick("float32", "float32", (1000,), names) == "256x2x4"


@each_table
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
        taken = matmul_plan.plan(m, k, n, dtype, tf32, 16, H200.processors, H200.capability).kernel
        names = matmul_plan.offered(m, k, n, workload.dtype, 16, H200.processors, H200.capability)
        by_kernel = {_launched(kernel, workload.dtype, m, k, n, H200.processors): name for name, kernel in names.items()}
        return by_kernel[taken]
    if name == MEAN:
        from opwise.backends.triton_jit import mean

        return str(mean.tuned(x))
    from opwise.backends.triton_jit import matmul_config, matmul_tma

    monkeypatch.setattr(matmul_config, "processors", lambda device: H200.processors)
    configs, kind = (matmul_tma.TF32_CONFIGS, "tf32") if tf32 else (matmul_tma.HALF_CONFIGS, "16-bit")
    m, k, n = workload.shape
    return matmul_config.tuned(configs, m, n, k, x, kind).name


# -- what is fitted ----------------------------------------------------------------------------------------------------------


def test_least_squares_finds_what_the_times_were_made_of() -> None:
    terms = [Term(1.0, 4.0), Term(2.0, 1.0, 5.0), Term(3.0, 30.0), Term(7.0, 2.0)]
    made = [(t, 2.5 * t.each + 0.25 * t.depth + t.fixed) for t in terms]
    assert least_squares(made) == pytest.approx((2.5, 0.25))
    assert least_squares(made[:2]) is None, "two times fit any two numbers"
    assert least_squares([(Term(n, 2.0 * n), 5.0 * n) for n in (1.0, 2.0, 3.0)]) is None, "one ratio does not part the two"
    below = least_squares([(Term(1.0, 4.0), 3.0), (Term(1.0, 8.0), 8.0), (Term(1.0, 16.0), 17.0)])
    assert below is not None
    assert below[0] == 0.0, "a tile takes no negative time"
    assert below[1] > 0


@pytest.mark.parametrize("name", ["triton_jit/matmul", CUDA])
def test_a_gpu_that_obeys_the_model_otherwise_gets_numbers_that_choose_right(name: str) -> None:
    """Times made by the plan's own model with the shipped numbers changed: the fit finds better choices than those shipped."""
    of = known_ways(name)
    half = [w for w in of.workloads(quick=False) if of.kind(w.dtype) == "16-bit"]
    rows = rows_of(of, half, H200, made_by(of, half))
    shipped = [r.loss(r.shipped) for r in rows]
    assert max(shipped) > 1.1, "the shipped numbers are wrong for this GPU"
    rule = elsewhere(of, rows, H200)["16-bit"]
    assert rule.rule == "fitted"
    assert rule.loss is not None
    assert rule.shipped_loss is not None
    assert rule.loss < min(1.03, rule.shipped_loss)
    again = [of.choose(Workload.parse(r.workload), H200, rule.parameters) for r in rows]
    assert max(r.loss(n) for r, n in zip(rows, again, strict=True) if n in r.times) < 1.05
    assert json.loads(json.dumps(rule.parameters)) == rule.parameters


def made_by(of: Ways, workloads: list[Workload]) -> Callable[[str, Workload], float]:
    """us of a configuration, linear in its terms, with numbers up to 2.5 times apart in another order than the shipped ones."""
    names = sorted({name for w in workloads for name in of.configurations(w, H200)})
    speeds = {
        kernel.name: kernel.speed * 1_900_000 for kernel in matmul_plan.KERNELS["float16"]
    }  # of what is no kernel, a tile takes its own

    def us(name: str, workload: Workload) -> float:
        term, i = of.term(name, workload, H200), names.index(name)
        assert term is not None
        each, depth = (64 / speeds[name], 1 / speeds[name]) if name in speeds else (2.0, 0.004)
        return term.each * each * (1 + i % 3) + term.depth * depth * (0.6 + (i * 7 % 5) / 4) + term.fixed

    return us


def test_a_rule_that_chooses_no_better_than_what_ships_is_not_taken() -> None:
    """Every other size has another winner: what is near tells nothing. With one winner everywhere, it does."""
    of = known_ways(MEAN)
    workloads = [Workload("mean", (1 << i,), "float32") for i in range(20, 28)]
    mixed = {str(w): ("256x2x4", "1024x8x2")[i % 2] for i, w in enumerate(workloads)}

    def rule(winner: Callable[[str], str]) -> Elsewhere:
        rows = [row(str(w), "512x4x4", {"512x4x4": 1.1, "256x2x4": 1.3, "1024x8x2": 1.3} | {winner(str(w)): 1.0}) for w in workloads]
        return elsewhere(of, rows, H200)["float32"]

    assert rule(lambda w: mixed[w]) == Elsewhere("shipped", 1.3, 1.1)
    assert rule(lambda w: "256x2x4") == Elsewhere("nearest", 1.0, 1.1)
    assert elsewhere(of, [row("mean/8/float32", "512x4x4", {"512x4x4": 1.0})], H200)["float32"].rule == "shipped"
