"""The choice from stored figures: which of them count, how they rank, and what is said of shapes nobody measured."""

from __future__ import annotations

import gzip
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_runs import ROOT, TOY, around, cell, store_of, stored

import opwise
from opwise import library, provenance
from opwise.backends import BACKENDS
from opwise.choosing import machine_code
from opwise.choosing.asked import NothingMeasured
from opwise.choosing.query import choose_from
from opwise.choosing.ranking import PREFERENCE, Choice
from opwise.choosing.store import Gpu, Store, stale
from opwise.ops import OPS, Workload
from opwise.record import Record

AT = Workload("softmax", (64, 64), "float16")


def chosen(*records: Record, workload: Workload = AT, purpose: str = "stream", gpu: Gpu = TOY, clock: str = "both") -> Choice:
    return choose_from(store_of(*records), workload, gpu, purpose, clock)


# --- ranking --------------------------------------------------------------------------------------------------------------------


def test_each_purpose_counts_its_own_time() -> None:
    records = (
        cell("torch_eager", 30.0, 5.0),
        cell("triton_jit", 10.0, 20.0, kernel_warm_us=around(9.5)),
        cell("cupy_raw", 12.0, 15.0, kernel_warm_us=around(4.0)),
    )
    found = {purpose: chosen(*records, purpose=purpose) for purpose in ("stream", "kernel", "graph", "call")}
    assert {p: (c.backend, c.chosen.us) for p, c in found.items()} == {
        "stream": ("cupy_raw", 15.0), "kernel": ("triton_jit", 10.0), "graph": ("cupy_raw", 4.0), "call": ("torch_eager", 5.0),
    }  # fmt: skip
    assert found["stream"].over_eager == 2.0
    assert "call costs 15 us, more than its kernel" in found["stream"].why
    assert "triton_jit, 1.33 times slower; torch eager is 2 times slower" in found["stream"].why


@pytest.mark.parametrize(("eager_us", "backend", "tied"), [(10.09, "torch_eager", True), (10.11, "cupy_raw", False)])
def test_a_tie_goes_to_the_one_that_asks_for_less(eager_us: float, backend: str, tied: bool) -> None:
    choice = chosen(cell("cupy_raw", 10.0), cell("torch_eager", eager_us), cell("torch_inline", 10.05))
    assert choice.backend == backend
    assert {s.backend: s.tied for s in choice.ranking} == {"cupy_raw": True, "torch_eager": tied, "torch_inline": True}
    assert "it asks for less to be installed" in choice.why
    assert "torch_inline" in choice.why


def test_the_preference_names_every_backend() -> None:
    assert set(PREFERENCE) == set(BACKENDS)


def test_one_job_s_launches_are_compared_in_pairs_where_the_kernel_counts() -> None:
    """Drift moved the medians 3 % apart, but round by round both took the same time."""
    pair = (cell("cupy_raw", 10.0, seed=7, versus_best=(1.0, 1.0, 1.0)), cell("triton_jit", 10.3, seed=7, versus_best=(1.002, 1.0, 1.004)))
    assert chosen(*pair).backend == "triton_jit"
    assert chosen(*pair).ranking[0].ratio == pytest.approx(1.002)
    apart = (pair[0], replace(pair[1], seed=8))
    assert chosen(*apart).backend == "cupy_raw", "two jobs are not paired"
    assert chosen(*(replace(r, call_us=around(r.kernel_cold_us.median + 1)) for r in pair if r.kernel_cold_us)).backend == "cupy_raw"


def test_the_interval_of_the_greater_of_two_times_holds_both_ends() -> None:
    record = cell("triton_jit", 10.0, 9.9)
    only = chosen(record).ranking[0]
    assert (only.low, only.us, only.high) == (9.9, 10.0, 10.1)


# --- the states of the clock ----------------------------------------------------------------------------------------------------


def product(backend: str, full_us: float | None, capped_us: float | None, n: int = 4096, **changed: object) -> Record:
    made = cell(backend, full_us or capped_us, shape=(n, n, n), op="matmul", **changed)
    return replace(made, kernel_cold_us=full_us and around(full_us), kernel_capped_us=capped_us and around(capped_us))


def of_product(*records: Record, n: int = 4096, purpose: str = "kernel", clock: str = "both") -> Choice:
    return chosen(*records, workload=Workload("matmul", (n, n, n), "float16"), purpose=purpose, clock=clock)


EAGER = product("torch_eager", 160.0, 250.0)  # geometric mean 200
CUPY = product("cupy_raw", 180.0, 200.0)  # 189.7
NUMBA = product("numba_cuda", None, 190.0)  # as schema 1 tells it


def test_both_states_of_the_clock_count_unless_one_is_asked_for() -> None:
    found = {clock: of_product(EAGER, CUPY, clock=clock) for clock in ("full", "capped", "both")}
    assert {c: (x.backend, pytest.approx(x.chosen.us)) for c, x in found.items()} == {
        "full": ("torch_eager", 160.0), "capped": ("cupy_raw", 200.0), "both": ("cupy_raw", (180 * 200) ** 0.5)}  # fmt: skip
    assert {c: x.states for c, x in found.items()} == {"full": ("full",), "capped": ("capped",), "both": ("full", "capped")}
    assert {(s.full_us, s.capped_us) for s in found["full"].ranking} == {(160.0, 250.0), (180.0, 200.0)}, "whichever counts"
    assert "its kernel takes 160 us at full clock, the least" in found["full"].why
    assert "its kernel takes 200 us power-capped, the least" in found["capped"].why
    assert "its kernel takes 180 us at full clock, 200 power-capped: geometric mean 189.7 us" in found["both"].why
    assert "at full clock torch_eager is the fastest, power-capped cupy_raw." in found["both"].why
    assert "state" not in chosen(cell("cupy_raw", 5.0), clock="full").why, "nothing to tell apart"


def test_what_is_known_power_capped_alone_makes_all_be_compared_so() -> None:
    choice = of_product(EAGER, CUPY, NUMBA)
    assert (choice.backend, choice.states) == ("numba_cuda", ("capped",))
    assert [(s.backend, s.us, s.capped_only) for s in choice.ranking] == [
        ("numba_cuda", 190.0, True), ("cupy_raw", 200.0, False), ("torch_eager", 250.0, False)]  # fmt: skip
    assert "190 us power-capped" in choice.why
    assert "no time at full clock of numba_cuda is on record, so all are compared power-capped" in choice.why
    at_full = of_product(EAGER, CUPY, NUMBA, clock="full")
    assert (at_full.backend, at_full.excluded) == ("torch_eager", {"numba_cuda": "only its power-capped time is on record"})
    with pytest.raises(NothingMeasured, match="at full clock.*opwise run matmul/4096x4096x4096/float16"):
        of_product(NUMBA, clock="full")


def test_the_purposes_without_a_state() -> None:
    assert of_product(EAGER, NUMBA, purpose="call", clock="full").ranking[0].us == 1.0, "a CPU time needs no state"
    graph = of_product(EAGER, replace(NUMBA, kernel_warm_us=around(90.0)), purpose="graph")
    assert (graph.backend, graph.chosen.us, graph.states) == ("numba_cuda", 90.0, ())
    with pytest.raises(ValueError, match="power-capped"):
        opwise.choose("softmax", (4, 4), dtype="float16", purpose="graph", clock="full")
    with pytest.raises(ValueError, match="known are both, full, capped"):
        opwise.choose("softmax", (4, 4), dtype="float16", clock="cold")


def test_paired_ratios_of_both_states_make_the_ratio_of_both() -> None:
    """The medians say that CuPy is 5 % faster, but round by round both take the same time over the two states."""
    best = replace(CUPY, seed=7, versus_best=(1.10, 1.09, 1.11), capped_versus_best=(1.0, 1.0, 1.0))
    eager = replace(EAGER, seed=7, versus_best=(1.0, 1.0, 1.0), capped_versus_best=(1.10, 1.09, 1.11))
    choice = of_product(best, eager)
    assert (choice.backend, choice.ranking[0].ratio) == ("torch_eager", pytest.approx(1.0))
    unchanged = product("torch_eager", 190.0, None, seed=7, versus_best=(1.0, 1.0, 1.0))
    assert {s.backend: s.ratio for s in of_product(best, unchanged, clock="capped").ranking} == {
        "torch_eager": 1.0, "cupy_raw": pytest.approx(200 / 190)}, "its ratio is to the fastest at full clock"  # fmt: skip


# --- which figures count --------------------------------------------------------------------------------------------------------


def test_the_newest_verdict_decides() -> None:
    old, new = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"
    eager = cell("torch_eager", 20.0)
    fast_once = cell("cupy_raw", 5.0, time=old)
    assert chosen(eager, fast_once, cell("cupy_raw", 30.0, time=new)).backend == "torch_eager"
    now_wrong = chosen(eager, fast_once, cell("cupy_raw", None, time=new, status="wrong", reason="element 3"))
    assert now_wrong.backend == "torch_eager"
    assert "element 3" in now_wrong.excluded["cupy_raw"]
    only_missing = chosen(eager, fast_once, cell("cupy_raw", None, time=new, status="unavailable"))
    assert only_missing.backend == "torch_eager", "records that `load` would leave out are the caller's to leave out"


def test_what_was_wrong_anywhere_is_not_chosen_between() -> None:
    right = [cell(b, us, shape=shape) for b, us in (("cupy_raw", 5.0), ("torch_eager", 9.0)) for shape in ((32, 32), (256, 256))]
    wrong = cell("cupy_raw", None, shape=(128, 32), status="wrong", reason="nan")
    assert chosen(*right).backend == "cupy_raw"
    assert chosen(*right, wrong).backend == "torch_eager"


def test_a_shape_that_was_refused_is_refused_there_alone() -> None:
    records = (
        cell("cupy_raw", 5.0, shape=(32, 32)),
        cell("torch_eager", 8.0, shape=(32, 32)),
        cell("cupy_raw", None, status="unsupported", reason="too wide"),
        cell("torch_eager", 9.0),
    )
    there = chosen(*records)
    assert there.backend == "torch_eager"
    assert there.excluded == {"cupy_raw": "unsupported: too wide"}
    assert chosen(*records, workload=replace_shape(AT, (48, 48))).backend == "cupy_raw"


def replace_shape(workload: Workload, shape: tuple[int, ...]) -> Workload:
    return Workload(workload.op, shape, workload.dtype)


def test_nothing_is_carried_over_between_compute_capabilities_dtypes_or_ops() -> None:
    store = store_of(cell("cupy_raw", 5.0))
    with pytest.raises(NothingMeasured, match="opwise run softmax/64x64/float16"):
        choose_from(store, AT, Gpu(TOY.device, "9.0"))
    for workload in (Workload("softmax", (64, 64), "bfloat16"), Workload("square", (64, 64), "float16")):
        with pytest.raises(NothingMeasured, match="measure"):
            choose_from(store, workload, TOY)


def test_a_gpu_without_figures_has_those_of_another_one_of_its_compute_capability() -> None:
    other = Gpu("NVIDIA Other", TOY.capability)
    store = store_of(cell("cupy_raw", 5.0), cell("triton_jit", 4.0), cell("torch_eager", 9.0), cell("cupy_raw", 1.0, capability="1.0"))
    choice = choose_from(store, AT, other)
    assert (choice.device, choice.backend, choice.chosen.us, choice.chosen.basis) == (other.device, "triton_jit", 4.0, "predicted")
    assert "Nothing of NVIDIA Other is on record: figures of NVIDIA Toy" in choice.why
    assert choice.refresh == "opwise run softmax/64x64/float16"
    found_wrong = cell("triton_jit", None, device=other.device, status="wrong")
    choice = choose_from(store_of(*store.records, found_wrong), AT, other)
    assert choice.backend == "cupy_raw", "what was seen on the GPU itself goes first"
    measured = choose_from(store_of(*store.records, cell("torch_eager", 9.0, device=other.device)), AT, other)
    assert (measured.backend, measured.chosen.basis) == ("torch_eager", "measured")


def test_of_each_cell_the_newest_run_counts_that_says_something(tmp_path: Path) -> None:
    """And what an older one says of it is not even parsed, here a record that was torn apart."""
    old = stored(tmp_path, cell("torch_eager", 9.0), cell("cupy_raw", 1.0), name="20260101T000000Z-core-abc1234")
    torn = old.read_text().replace('"kernel_cold_us"', "kernel_cold_us", 1)
    old.write_text(torn)
    stored(tmp_path, cell("torch_eager", 3.0), cell("torch_eager", 4.0), cell("cupy_raw", None, status="unavailable"))
    store = Store.load(sorted(tmp_path.glob("*/*.jsonl")))
    assert {r.backend: r.kernel_cold_us.median for r in store.records if r.kernel_cold_us} == {"torch_eager": 4.0, "cupy_raw": 1.0}


# --- stale figures --------------------------------------------------------------------------------------------------------------

HERE = {"driver": "1.0", "versions": {"torch": "2.0", "nvidia-ml-py": "9"}}


def test_what_makes_a_figure_stale() -> None:
    fresh = cell("cupy_raw", 5.0)
    assert stale(fresh, HERE) == ""
    assert stale(fresh, HERE | {"driver": "2.0"}) == "driver 1.0 then, 2.0 now"
    assert stale(fresh, HERE | {"versions": {"torch": "2.1", "triton": "3"}}) == "torch 2.0 then, 2.1 now; triton none then, 3 now"
    assert "sources have changed" in stale(replace(fresh, source="0123"), HERE)
    assert stale(replace(fresh, driver="other"), None) == "", "away from the GPU there is no driver to compare with"


def test_sources_that_made_the_same_machine_code_leave_a_figure_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the history of its GPU tells it, of that shape, by the same torch and driver."""
    old = replace(cell("cupy_raw", 5.0), source="0123")

    def told(code_then: str, code_now: str, shape: str = "64x64", driver: str = "1.0") -> str:
        cells = (
            {f"softmax/cupy_raw/{shape}/float16": {"source": "0123", "code": code_then}},
            {f"softmax/cupy_raw/{shape}/float16": {"source": provenance.source("cupy_raw", "softmax"), "code": code_now}},
        )
        folder = tmp_path / "history" / "nvidia-toy"
        folder.mkdir(parents=True, exist_ok=True)
        for number, of_commit in enumerate(cells):
            data = {"commit": str(number), "versions": {"torch": "2.0", "driver": driver}, "cells": of_commit}
            (folder / f"{number}.json.gz").write_bytes(gzip.compress(json.dumps(data).encode()))
        machine_code.codes.cache_clear()
        return stale(old, HERE)

    monkeypatch.setattr(library, "shipped", lambda: tmp_path)
    assert told("a", "a") == ""
    for changed in (told("a", "b"), told("", ""), told("a", "a", shape="64x65"), told("a", "a", driver="2.0")):
        assert "sources have changed" in changed
    machine_code.codes.cache_clear()


def test_a_record_without_a_digest_is_compared_through_git(monkeypatch: pytest.MonkeyPatch) -> None:
    old = replace(cell("triton_jit", 5.0), source="", commit="c0ffee")
    kernel = ROOT / "src/opwise/backends/triton_jit/softmax/block.py"
    for changed, reason in (
        ({kernel}, "changed since commit c0ffee"),
        ({kernel.with_name("mean.py")}, ""),
        (set(), ""),
        (None, "cannot be"),
    ):
        monkeypatch.setattr(provenance, "changed_since", lambda commit, changed=changed: changed)
        assert (reason in stale(old, None)) if reason else not stale(old, None)
    monkeypatch.setattr(provenance, "changed_since", lambda commit: frozenset())
    assert "cannot be compared" in stale(replace(old, dirty=True), None)


def test_git_tells_what_has_changed_since_a_commit() -> None:
    if subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD~1"], capture_output=True, check=False).returncode:
        pytest.skip("no git history here: an archive or a shallow clone")
    first = subprocess.run(["git", "-C", str(ROOT), "rev-list", "--max-parents=0", "HEAD"], capture_output=True, text=True, check=True)
    changed = provenance.changed_since(first.stdout.split()[0])
    assert changed
    assert ROOT / "src/opwise/provenance.py" in changed
    assert provenance.changed_since("0" * 40) is None
    assert provenance.changed_since("") is None


def test_a_copy_of_the_tree_in_another_repository_is_no_checkout(tmp_path: Path) -> None:
    copy = tmp_path / "vendor" / "opwise"
    copy.mkdir(parents=True)
    for folder in (tmp_path, copy):
        (folder / "pyproject.toml").touch()
    assert not provenance.checked_out(copy)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert not provenance.checked_out(copy), "whose commits are not opwise's"
    assert provenance.checked_out(tmp_path)


def test_the_digest_is_of_the_backend_s_files_for_the_op_and_no_other_op_s() -> None:
    for backend in BACKENDS:
        names = {p.relative_to(provenance.PACKAGE).as_posix() for p in provenance.sources(backend, "softmax")}
        assert {"backends/protocol.py", "ops/softmax.py"} <= names
        assert names & {f"backends/{backend}/softmax.py", f"backends/{backend}/softmax/__init__.py"}
        assert not any(Path(n).stem.split("_")[0] in OPS and "softmax" not in n for n in names)
        assert ("backends/staged_rows.py" in names) == (backend != "torch_eager")
        assert ("backends/cuda_src/softmax/softmax.cu" in names) == (backend in ("torch_inline", "cupy_raw"))
    digests = {provenance.source(b, op) for b in BACKENDS for op in OPS}
    assert len(digests) == len(BACKENDS) * len(OPS)
    assert provenance.source("elsewhere", "softmax") == ""


def test_a_choice_by_stale_figures_says_so_and_how_to_refresh_them() -> None:
    old = [replace(cell(b, us), source="0123") for b, us in (("cupy_raw", 5.0), ("torch_eager", 9.0))]
    choice = chosen(*old)
    assert all("sources have changed" in s.stale for s in choice.ranking)
    assert choice.refresh == "opwise run softmax/64x64/float16"
    elsewhere = chosen(*old, workload=replace_shape(AT, (100, 100)))
    assert elsewhere.refresh == "opwise run softmax/100x100/float16"
    assert chosen(cell("cupy_raw", 5.0)).refresh == ""


@pytest.mark.parametrize(
    ("ours", "at", "chosen"), [(0.97, (512, 512), "torch_eager"), (0.93, (512, 512), "cupy_raw"), (0.97, (64, 64), "cupy_raw")]
)
def test_a_lead_over_torch_eager_that_nobody_measured_counts_from_5_percent_on(ours: float, at: tuple[int, int], chosen: str) -> None:
    shapes = {(64, 64): 100.0, (4096, 4096): 1000.0, (64, 4096): 300.0, (4096, 64): 300.0}
    cells = [cell(b, us * share, shape=shape) for shape, us in shapes.items() for b, share in (("torch_eager", 1.0), ("cupy_raw", ours))]
    choice = choose_from(store_of(*cells), Workload("softmax", at, "float16"), "nvidia-toy")
    assert choice.backend == chosen
    assert ("within 5 % of cupy_raw: at a shape that was not measured that is no lead" in choice.why) is (chosen == "torch_eager")
