"""The choice from stored figures: which of them count, how they rank, and what is said of shapes nobody measured."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from recorded_runs import H200, ROOT, TOY, around, cell, core_run, store_of, stored

import opwise
from opwise import library, provenance
from opwise.backends import BACKENDS
from opwise.choosing import query
from opwise.choosing.interpolate import Interpolant, best_case
from opwise.choosing.query import NothingMeasured, choose_from, workload_of
from opwise.choosing.ranking import PREFERENCE, Choice
from opwise.choosing.store import Gpu, Store, stale
from opwise.ops import OPS, Workload
from opwise.record import Record

AT = Workload("softmax", (64, 64), "float16")


def chosen(*records: Record, workload: Workload = AT, purpose: str = "stream", gpu: Gpu = TOY) -> Choice:
    return choose_from(store_of(*records), workload, gpu, purpose)


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
    assert found["stream"].margin == 2.0
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


def test_nothing_is_carried_over_between_compute_capabilities_devices_dtypes_or_ops() -> None:
    store = store_of(cell("cupy_raw", 5.0))
    for gpu in (Gpu(TOY.device, "9.0"), Gpu("NVIDIA Other", TOY.capability)):
        with pytest.raises(NothingMeasured, match="opwise run softmax/64x64/float16"):
            choose_from(store, AT, gpu)
    for workload in (Workload("softmax", (64, 64), "bfloat16"), Workload("square", (64, 64), "float16")):
        with pytest.raises(NothingMeasured, match="measure"):
            choose_from(store, workload, TOY)


def test_an_empty_store_says_what_makes_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "shipped", lambda: tmp_path / "none")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(NothingMeasured, match="`opwise run`"):
        opwise.choose("softmax", (64, 64), dtype="float16", results=tmp_path)


def test_a_torn_store_gives_what_is_whole(tmp_path: Path) -> None:
    path = stored(tmp_path, cell("torch_eager", 9.0), cell("cupy_raw", 5.0))
    path.write_bytes(path.read_bytes()[:-30])
    foreign = stored(tmp_path, name="20260103T000000Z-core-abc1234")
    foreign.write_text('{"someone": "else"}\n')
    with pytest.warns(UserWarning, match="torn|left out") as caught:
        store = Store.load(sorted(tmp_path.glob("*/*.jsonl")))
    assert len(caught) == 2
    assert choose_from(store, AT, TOY).backend == "torch_eager"


# --- stale figures --------------------------------------------------------------------------------------------------------------

HERE = {"driver": "1.0", "versions": {"torch": "2.0", "nvidia-ml-py": "9"}}


def test_what_makes_a_figure_stale() -> None:
    fresh = cell("cupy_raw", 5.0)
    assert stale(fresh, HERE) == ""
    assert stale(fresh, HERE | {"driver": "2.0"}) == "driver 1.0 then, 2.0 now"
    assert stale(fresh, HERE | {"versions": {"torch": "2.1", "triton": "3"}}) == "torch 2.0 then, 2.1 now; triton none then, 3 now"
    assert "sources have changed" in stale(replace(fresh, source="0123"), HERE)
    assert stale(replace(fresh, driver="other"), None) == "", "away from the GPU there is no driver to compare with"


def test_a_record_without_a_digest_is_compared_through_git(monkeypatch: pytest.MonkeyPatch) -> None:
    old = replace(cell("triton_jit", 5.0), source="", commit="c0ffee")
    kernel = ROOT / "src/opwise/backends/triton_jit/softmax.py"
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


def test_the_digest_is_of_the_backend_s_files_for_the_op_and_no_other_op_s() -> None:
    for backend in BACKENDS:
        names = {p.relative_to(provenance.PACKAGE).as_posix() for p in provenance.sources(backend, "softmax")}
        assert {f"backends/{backend}/softmax.py", "backends/protocol.py", "ops/softmax.py"} <= names
        assert not any(Path(n).stem.split("_")[0] in OPS and "softmax" not in n for n in names)
        assert ("backends/cuda_src/softmax.cu" in names) == (backend in ("torch_inline", "cupy_raw"))
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


# --- shapes that nobody measured ------------------------------------------------------------------------------------------------


def test_what_was_measured_is_given_back_exactly_and_nothing_lies_outside_of_it() -> None:
    known = [((2**a, 2**b), 2.0 + a * b % 7) for a in range(4, 12, 2) for b in range(4, 12, 2)]
    field = Interpolant(known)
    for sizes, value in known:
        assert field.at(sizes)[0] == pytest.approx(value)
    rng = np.random.default_rng(5)
    values = [field.at(tuple(2 ** rng.integers(0, 16, 2))) for _ in range(200)]
    assert min(v for _, v in known) <= min(v for v, _, _ in values)
    assert max(v for v, _, _ in values) <= max(v for _, v in known)
    assert all(low <= v <= high for v, low, high in values)


def test_the_trend_carries_the_size() -> None:
    """Twice the bytes, twice the time: with the trend divided out such a field is flat, and exact far outside of what was measured."""
    trend = best_case([(10.0, 1e6, 0.0), (20.0, 2e6, 0.0)], lambda sizes: (float(sizes[0]), 0.0))
    field = Interpolant([((10**6,), 30.0), ((2 * 10**6,), 60.0)], trend)
    value, low, high = field.at((10**8,))
    assert value == pytest.approx(3000.0)
    assert low == pytest.approx(high)


def test_neighbours_of_the_same_alignment_count_for_more() -> None:
    field = Interpolant([((1000, 1000), 1.0), ((1000, 1001), 3.0)])
    assert field.at((1000, 1002 + 6))[0] < 1.1
    assert field.at((1000, 1003))[0] > 2.8
    assert field.at((1001, 1008))[0] < 1.1, "the number of rows aligns nothing"


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_inside_and_outside_of_the_hull(dimensions: int) -> None:
    rng = np.random.default_rng(dimensions)
    known = [tuple(int(2**x) for x in rng.uniform(4, 12, dimensions)) for _ in range(12)]
    field = Interpolant([(sizes, 1.0) for sizes in known])
    logs = np.log2(known)
    for _ in range(40):
        mixed = rng.dirichlet(np.ones(len(known))) @ logs
        assert field.holds(tuple(round(2**x) for x in mixed))
    beyond = logs.max(axis=0) + 0.5
    assert not field.holds(tuple(round(2**x) for x in beyond))
    for axis in range(dimensions):
        off = logs.mean(axis=0)
        off[axis] = logs[:, axis].min() - 0.5
        assert not field.holds(tuple(round(2**x) for x in off))


@pytest.mark.parametrize(("shape", "basis"), [((4096, 4096), "measured"), ((3000, 5000), "interpolated"), ((1, 10**7), "extrapolated")])
def test_a_choice_says_where_its_figures_come_from(shape: tuple[int, ...], basis: str) -> None:
    choice = chosen(*core_run(), workload=Workload("softmax", shape, "float16"), gpu=H200)
    assert {s.basis for s in choice.ranking} == {basis}
    assert basis == "measured" or basis in choice.why


def test_the_same_number_of_elements_is_the_same_measured_size() -> None:
    choice = chosen(*core_run(), workload=Workload("gelu", (64, 256, 1024), "float16"), gpu=H200)
    assert {s.basis for s in choice.ranking} == {"measured"}


def test_leaving_out_each_recorded_workload_costs_little(capsys: pytest.CaptureFixture[str]) -> None:
    """Each workload of the core run in turn is forgotten, chosen for by interpolation, and looked up in the end. With seven or eight shapes
    an op this asks far more than a neighbour's shape does: every corner of the hull becomes an extrapolation."""
    records = [r for r in core_run() if r.status == "ok"]
    lost, errors = {}, {}
    for workload in dict.fromkeys(r.workload for r in records):
        sizes = OPS[workload.op].sizes(workload.shape)
        rest = [r for r in records if not (r.op == workload.op and OPS[r.op].sizes(r.shape) == sizes)]
        truth = {r.backend: max(r.kernel_cold_us.median, r.call_us.median) for r in records if r.workload == workload}
        choice = chosen(*rest, workload=workload, gpu=H200)
        lost.setdefault(workload.op, {})[workload] = truth[choice.backend] / min(truth.values())
        errors.setdefault(workload.op, []).extend(abs(math.log(s.us / truth[s.backend])) for s in choice.ranking)
    with capsys.disabled():
        sys.stdout.write("\nleft out in turn: median error of the times; chosen over best, median and worst; over 10 %\n")
        for op, ratios in lost.items():
            over, error = list(ratios.values()), math.expm1(np.median(errors[op]))
            sys.stdout.write(
                f"{op:>16}: {error:.1%}; {np.median(over):.3f}, {max(over):.2f}; {sum(v > 1.1 for v in over)} of {len(over)}\n"
            )
    every = [v for ratios in lost.values() for v in ratios.values()]
    assert np.median(every) <= 1.001
    assert sum(v > 1.1 for v in every) <= 0.11 * len(every)
    for op in ("square", "mean", "gelu"):
        assert max(lost[op].values()) <= 1.06, op
        assert np.median(errors[op]) <= math.log(1.15), op
    assert np.median(errors["softmax"]) <= math.log(1.25)
    assert np.median(errors["matmul"]) <= math.log(1.35)


# --- what is asked --------------------------------------------------------------------------------------------------------------


def test_tensors_and_shapes_ask_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.ones(16, 32), torch.ones(32, 8, requires_grad=True)
    assert workload_of("matmul", (a, b)) == Workload("matmul", (16, 32, 8), "float32")
    for shape in (("16x32x8",), ((16, 32, 8),), (16, 32, 8), (torch.Size((16, 32, 8)),)):
        assert workload_of("matmul", shape, torch.float32) == Workload("matmul", (16, 32, 8), "float32")
    assert workload_of("square", (5,), "float16").shape == (5,)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert opwise.choose("softmax", "4096x4096", dtype=torch.float16).device == "NVIDIA H200"


@pytest.mark.parametrize(
    ("op", "given", "dtype", "error", "says"),
    [
        ("sofmax", ("4x4",), "float16", ValueError, "known are square"),
        ("softmax", ("4x4",), None, TypeError, "add dtype="),
        ("softmax", ("4x4",), "float64", ValueError, "taken are float32"),
        ("softmax", ("4xfour",), "float16", ValueError, "'4096x4096'"),
        ("softmax", ((4, 4, 4),), "float16", ValueError, "no shape of softmax"),
        ("matmul", ((4, 4),), "float16", ValueError, "no shape of matmul"),
        ("square", ((-4,),), "float16", ValueError, "negative"),
        ("square", (torch.ones(2),), "float16", ValueError, "leave out dtype"),
        ("square", (torch.ones(2, dtype=torch.int32),), None, TypeError, "call x.to"),
    ],
)  # fmt: skip
def test_what_is_no_workload_is_refused_with_what_is_taken(op: str, given: tuple, dtype: str, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        workload_of(op, given, dtype)


def test_devices_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    store = store_of(cell("cupy_raw", 5.0), cell("cupy_raw", 5.0, device="NVIDIA Newer", time="2026-03-01T00:00:00+00:00"))
    assert query.gpu_of(store, None).device == "NVIDIA Newer", "the one measured last"
    assert query.gpu_of(store, "nvidia-toy") == query.gpu_of(store, "NVIDIA Toy") == TOY
    for device, says in (
        ("a100", "known are NVIDIA Newer, NVIDIA Toy"),
        ("cuda:0", "torch sees no GPU"),
        ("cpu", "nothing is timed on the CPU"),
    ):
        with pytest.raises(ValueError, match=says):
            query.gpu_of(store, device)


def test_purpose_and_measuring_are_refused_clearly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="known are stream, kernel, graph, call"):
        opwise.choose("softmax", (4, 4), dtype="float16", purpose="speed")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="torch sees no GPU"):
        opwise.choose("softmax", (4, 4), dtype="float16", measure=True, results=tmp_path)
