"""Tuned tables: what is stored comes back, counts where it was measured alone, decides what plans take, and is proven before it does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_runs import TOY, cell
from tuned_tables import FACTS, forget, known_ways, row, table

from opwise import provenance
from opwise.backends import tuned, tuned_table
from opwise.backends.cuda_src import matmul
from opwise.backends.gemm.choice import Choice, choose, predictions
from opwise.backends.gemm.cost import Product, Work
from opwise.backends.gemm.gpu import H100, HOPPER
from opwise.backends.tuned import Choices
from opwise.backends.tuned_table import Elsewhere, Table, TornTable
from opwise.choosing.store import stale
from opwise.tuning import standing
from opwise.tuning.nearby import elsewhere

GPU = torch.device("cuda", 0)
CUDA, MEAN = "cuda_src/matmul", "triton_jit/mean"
SQUARES = row("matmul/4096x4096x4096/float16", "128x256", {"128x256": 200.0, "128x192": 190.0})


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of tables, and the toy GPU in this machine."""
    monkeypatch.setenv(tuned_table.VARIABLE, str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: TOY.device)
    monkeypatch.setattr(tuned, "_facts", lambda index: FACTS)
    forget()
    yield tmp_path
    forget()


# -- what is stored ----------------------------------------------------------------------------------------------------------


def test_a_table_comes_back_as_it_was_and_a_torn_one_is_refused(tmp_path: Path) -> None:
    rule = Elsewhere("nearest", 1.01, 1.05)
    made = table(CUDA, SQUARES, replace(SQUARES, workload="matmul/8x8x8/float16", sizes=(8, 8, 8), refused={"x": "wrong: 3"}),
                 elsewhere={"float16": rule})  # fmt: skip
    path = tuned_table.write(made, tmp_path)
    assert tuned_table.read(path) == made
    assert [p.name for p in path.parent.iterdir()] == ["cuda_src-matmul.json"], "nothing half-written is left"
    whole = path.read_text()
    data = json.loads(whole)
    data["rows"][0]["times"].pop(data["rows"][0]["chosen"])
    for broken in (whole[:-40], "", "[]", whole.replace('"schema": 2', '"schema": 1'), json.dumps(data)):
        path.write_text(broken)
        with pytest.raises(TornTable, match="is no whole table.*opwise tune"):
            tuned_table.read(path)


def test_the_digest_tells_which_kernels_run_and_nothing_else() -> None:
    made = table(CUDA, SQUARES)
    again = replace(SQUARES, times={name: replace(t, us=t.us * 1.01) for name, t in SQUARES.times.items()})
    assert table(CUDA, again, driver="2.0").digest == made.digest
    others = [
        table(CUDA, replace(SQUARES, chosen="128x256")),
        table(CUDA, SQUARES, elsewhere={"float16": Elsewhere("nearest", 1.0, 1.1)}),
        table(CUDA, SQUARES, elsewhere={"bfloat16": Elsewhere("nearest", 1.0, 1.1)}),
    ]
    assert len({made.digest, *(other.digest for other in others)}) == 4


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


class Tile:
    """A configuration that takes as long as it has steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def work(self, product: Product) -> Work:
        return Work(132, self.steps, "wgmma", 1e6, 0.0, 0.0, 4, 0.0, 0.0, 0.0)


def test_what_is_forced_comes_before_what_was_tuned_and_that_before_what_is_predicted() -> None:
    product, known = Product(4096, 4096, 4096, "float16"), {"slow": Tile(9), "quick": Tile(3), "as quick": Tile(3)}
    assert choose(product, known, H100) == Choice("quick", "predicted"), "of equals the first"
    assert list(predictions(product, known, H100)) == list(known)
    own = Choices(table(CUDA, row("matmul/4096x4096x4096/float16", "quick", {"quick": 2.0, "slow": 1.0})))
    assert choose(product, known, H100, own) == Choice("slow", "tuned here")
    assert choose(product._replace(m=2048), known, H100, own) == Choice("quick", "predicted"), "other sizes have no rule"
    assert choose(product._replace(kind="bfloat16"), known, H100, own) == Choice("quick", "predicted")
    assert choose(product, {"quick": Tile(3)}, H100, own) == Choice("quick", "predicted"), "what cannot be had is not taken"
    assert choose(product, known, H100, Choices(own.table, forced="as quick")) == Choice("as quick", "forced")
    with pytest.raises(tuned.NoSuchConfiguration, match="no_such is not among what"):
        choose(product, known, H100, Choices(forced="no_such"))
    with pytest.raises(ValueError, match="no configuration takes"):
        choose(product, {}, H100)


def test_the_cuda_plan_takes_what_was_measured() -> None:
    def kernel(table_: Table | None, m: int = 4096) -> str:
        return matmul.plan(Product(m, 4096, 4096, "float16"), HOPPER, choices=Choices(table_)).kernel

    assert kernel(None) != "matmul_wgmma_float16_128x64"
    measured = table(CUDA, row("matmul/4096x4096x4096/float16", "128x256", {"128x64": 1.0, "128x256": 2.0}))
    assert kernel(measured) == "matmul_wgmma_float16_128x64"
    assert kernel(measured, m=2048) == kernel(None, m=2048)


def test_sizes_in_between_get_what_the_nearest_got() -> None:
    rows = [row(f"mean/{n}/float32", "512x4x4", {"512x4x4": 2.0, name: 1.0}) for n, name in ((1000, "256x2x4"), (64000, "1024x8x2"))]
    near = Choices(table(MEAN, *rows, elsewhere={"float32": Elsewhere("nearest", 1.0, 1.1)}))
    names = ("512x4x4", "256x2x4", "1024x8x2")
    assert [near.pick("float32", (n,), names) for n in (1, 7900, 8100, 10**9)] == ["256x2x4"] * 2 + ["1024x8x2"] * 2
    assert near.pick("float16", (1000,), names) is None
    assert Choices(table(MEAN, *rows)).pick("float32", (999,), names) is None
    assert Choices(table(MEAN, *rows)).pick("float32", (1000,), names) == "256x2x4"


def test_a_rule_that_chooses_no_better_than_what_ships_is_not_taken() -> None:
    """Every other size has another winner: what is near tells nothing. With one winner everywhere, it does."""
    workloads = [f"mean/{1 << i}/float32" for i in range(20, 28)]

    def rule(*winners: str) -> Elsewhere:
        times = {"512x4x4": 1.1, "256x2x4": 1.3, "1024x8x2": 1.3}
        rows = [row(w, "512x4x4", times | {winners[i % len(winners)]: 1.0}) for i, w in enumerate(workloads)]
        return elsewhere(rows)["float32"]

    assert rule("256x2x4", "1024x8x2") == Elsewhere("shipped", 1.3, 1.1)
    assert rule("256x2x4") == Elsewhere("nearest", 1.0, 1.1)
    assert elsewhere([row("mean/8/float32", "512x4x4", {"512x4x4": 1.0})])["float32"].rule == "shipped"


@pytest.mark.parametrize("name", [name for name in tuned_table.TUNABLE if name.endswith(("matmul", "mean"))])
def test_what_is_measured_holds_what_the_plan_takes_by_itself(name: str) -> None:
    """The shipped choice of each workload is one of the configurations; of products those that are predicted to be near the quickest."""
    of = known_ways(name)
    assert set(of.workloads(quick=True)) < set(of.workloads(quick=False))
    assert of.nearest == name.endswith("mean")
    for workload in of.workloads(quick=False):
        found = of.configurations(workload)
        assert 1 < len(found) <= (99 if of.nearest else 17)
        assert of.choose(workload) in found


def test_the_mean_s_choice_is_what_its_plan_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    of = known_ways(MEAN)
    from opwise.backends.triton_jit import mean

    monkeypatch.setattr(mean, "processors", lambda device: HOPPER.sms)
    for workload in of.workloads(quick=False):
        x = torch.empty(workload.shape[0], dtype=workload.torch_dtype, device="meta")
        assert str(mean.tuned(x)) == of.choose(workload)
