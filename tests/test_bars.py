"""What the backends are held to: the table of bars, figures from recorded runs, and the command that exits 1 where one is missed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_runs import H200, ROOT, TOY, around, core_run, stored
from typer.testing import CliRunner, Result

from opwise import provenance
from opwise.backends import BACKENDS
from opwise.bars.judging import MET, NOT_MEASURED, SHORT, Figure, Run, Standing, figure, judged, read_runs
from opwise.bars.table import BARS, EACH, GEOMETRIC_MEAN, HELD, MIB, SUM, WORKLOADS, Bar
from opwise.cli import app
from opwise.commands import bars as command
from opwise.ops import OPS
from opwise.ops.spec import Workload, elements
from opwise.record import Record, append
from opwise.runner import Entry, plan

CATALOGUE = {name: Entry(name, versions={"x": "1"}, variants={op: {"": ""} for op in OPS}) for name in BACKENDS}
BY_NAME = {bar.name: bar for bar in BARS}
SOFTMAX = BY_NAME["softmax-long"].workloads[0]


def invoke(*arguments: str) -> Result:
    return CliRunner(env={"TERM": "dumb"}).invoke(app, ["bars", *arguments])


def cell(backend: str, workload: Workload, **changed: object) -> Record:
    """A record that meets every bar, as fast as torch eager in everything but a first call."""
    fields: dict[str, object] = {"status": "ok", "sol": 1.0, "kernel_cold_us": around(10.0), "launch_us": around(2.0),
                                 "call_us": around(4.0), "versus_best": (1.0, 1.0, 1.0), "device": TOY.device, "driver": "1.0",
                                 "capability": TOY.capability, "source": provenance.source(backend, workload.op), "commit": "abc1234",
                                 "dirty": False, "time": "2026-01-02T00:00:00+00:00"}  # fmt: skip
    if backend != "torch_eager":
        fields["launch_us"] = around(1.0)
    return Record.of(f"{backend}/{workload.op}", workload, **{**fields, **changed})


def full_run() -> list[Record]:
    """All that the bars ask for, all of it met."""
    records = [cell(backend, w) for w in WORKLOADS for backend in BACKENDS]
    return records + [cell(b, Workload(op, (7,) * (2 if op == "softmax" else 3 if op == "matmul" else 1), "float32"), compile_cold_s=0.5,
                           compile_cached_s=0.05) for b in BACKENDS for op in OPS]  # fmt: skip


def missing_it(bar: Bar, r: Record) -> Record:
    """The record, changed so that it alone misses the bar."""
    if bar.figure == "sol":
        return replace(r, sol=bar.required[r.backend] - 0.001)
    if bar.figure == "speed":
        return replace(r, versus_best=(200.0, 199.0, 201.0))
    if bar.figure in ("launch", "call"):
        return replace(r, **{f"{bar.figure}_us": around(100.0)})  # type: ignore[arg-type]
    return replace(r, **{f"compile_{bar.figure}": 1000.0})  # type: ignore[arg-type]


def test_every_hand_written_backend_has_every_bar() -> None:
    assert set(HELD) == set(BACKENDS) - {"torch_eager"}
    assert all(tuple(bar.required) == HELD for bar in BARS)
    assert len(BY_NAME) == len(BARS)
    assert all(w.dtype in OPS[w.op].dtypes for w in WORKLOADS)
    for bar in BARS:
        assert bar.workloads
        assert bar.first_call or set(bar.workloads) <= set(WORKLOADS)
        assert bar.over in (EACH, GEOMETRIC_MEAN, SUM)


def test_the_sizes_are_what_the_bars_say() -> None:
    def mib(bar: str) -> list[float]:
        return [elements(w.shape) * w.torch_dtype.itemsize / MIB for w in BY_NAME[bar].workloads]

    assert min(mib("square-sol")) == min(mib("gelu-sol")) == 64
    for size in (64, 256, 1024):
        assert set(mib(f"mean-sol-{size}")) == {size}
    assert min(mib("softmax-sol") + mib("softmax-long")) == 256
    assert {w.shape[1] for w in BY_NAME["softmax-sol"].workloads} == {2**k for k in range(8, 16)}
    assert {w.shape[1] for w in BY_NAME["softmax-long"].workloads} == {2**k for k in range(16, 21)}
    products = BY_NAME["matmul-half-worst"].workloads
    assert {w.shape[1] for w in products} >= {128, 16384}
    assert {w.shape[0] for w in products} >= {128, 1024, 8192, 16384}
    assert {w.dtype for w in products} == {"float16", "bfloat16"}


@pytest.mark.parametrize("bar", [bar for bar in BARS if not bar.first_call], ids=lambda bar: str(bar.name))
def test_the_command_of_a_bar_measures_its_workloads_beside_torch(bar: Bar) -> None:
    assert bar.command.startswith("opwise run --set bars ")
    jobs = plan(CATALOGUE, bar.command.split()[4:], "bars", "cuda:0")
    found = {job.workload: job.implementations for job in jobs}
    assert set(bar.workloads) <= set(found)
    assert {w.op for w in found} == {w.op for w in bar.workloads}, "and nothing of other ops"
    assert all(f"{backend}/{w.op}" in found[w] for w in bar.workloads for backend in BACKENDS)


def test_a_full_run_meets_all_and_each_miss_is_told(tmp_path: Path) -> None:
    right = full_run()
    path = stored(tmp_path, *right)
    told = invoke(str(path))
    assert told.exit_code == 0, told.output
    assert f"{len(BARS) * len(HELD)} bars: {len(BARS) * len(HELD)} met, 0 short, 0 not measured" in told.output
    assert "falls short" not in told.output
    assert "stale" not in told.output.splitlines()[-2]
    for number, bar in enumerate(BARS):
        backend = HELD[number % len(HELD)]
        at = bar.workloads[-1]
        there = [r.compile_cold_s is not None and r.op == at.op if bar.first_call else r.workload == at for r in right]
        changed = [missing_it(bar, r) if here and r.backend == backend else r for r, here in zip(right, there, strict=True)]
        found = judged([bar], [Run.of("", changed)])
        assert [s.backend for s in found if s.verdict == SHORT] == [backend], bar.name


def test_one_miss_makes_the_command_fail_and_names_the_workload(tmp_path: Path) -> None:
    bar = BY_NAME["softmax-long"]
    changed = [missing_it(bar, r) if (r.backend, r.workload) == ("numba_cuda", SOFTMAX) else r for r in full_run()]
    told = invoke(str(stored(tmp_path, *changed)))
    assert told.exit_code == 1
    assert f"numba_cuda falls short: {bar.what}, worst of {len(bar.workloads)}: {SOFTMAX} 0.899" in told.output
    assert told.output.count("falls short") == 1


def test_what_is_not_measured_counts_as_not_met_and_says_how_to_measure_it(tmp_path: Path) -> None:
    for bar in BARS:
        gone = bar.workloads[0]
        kept = [r for r in full_run() if not (r.op == gone.op and r.compile_cold_s is not None if bar.first_call else r.workload == gone)]
        assert {s.verdict for s in judged([bar], [Run.of("", kept)])} == {NOT_MEASURED}, bar.name
        if bar.name in ("matmul-half-mean", "first-call-cold"):
            told = invoke(str(stored(tmp_path / bar.name, *kept)))
            assert told.exit_code == 1
            assert f"not measured: {bar.what}, 1 of {len(bar.workloads)}: {bar.command}" in told.output


def test_a_figure_is_the_median_of_the_newest_three_of_the_same_kernels() -> None:
    bar, backend = BY_NAME["softmax-long"], "triton_jit"

    def runs(*solved: tuple[float, str]) -> list[Run]:
        return [Run.of("", [cell(backend, SOFTMAX, sol=sol, source=source)]) for sol, source in solved]

    assert figure(bar, backend, SOFTMAX, runs((0.1, "a"), (0.7, "a"), (0.9, "a"), (0.8, "a"))).values == (0.8, 0.9, 0.7)
    assert figure(bar, backend, SOFTMAX, runs((0.7, "a"), (0.9, "a"), (0.8, "a"))).value == 0.8
    mixed = figure(bar, backend, SOFTMAX, runs((0.1, "old"), (0.9, "a")))
    assert mixed.values == (0.9,)
    assert "sources have changed" in mixed.stale
    another_driver = Run.of("", [cell(backend, SOFTMAX, sol=0.1, driver="0.9", source="a")])
    assert figure(bar, backend, SOFTMAX, [another_driver, *runs((0.9, "a"))]).values == (0.9,)


def test_what_is_wrong_now_is_short_whatever_it_was_before() -> None:
    bar, backend = BY_NAME["softmax-long"], "triton_jit"
    before = Run.of("", [cell(backend, w) for w in bar.workloads])
    wrong = Run.of("", [cell(backend, SOFTMAX, status="wrong", reason="3 of 9 elements", sol=None)])
    missing = Run.of("", [cell(backend, SOFTMAX, status="unavailable", reason="not installed", sol=None)])
    assert _of(judged([bar], [before]), backend).verdict == MET
    assert _of(judged([bar], [before, missing]), backend).verdict == MET, "a missing library says nothing of the kernel"
    short = _of(judged([bar], [before, wrong]), backend)
    assert short.verdict == SHORT
    assert short.worst[0].reason == "wrong: 3 of 9 elements"


def _of(standings: list[Standing], backend: str) -> Standing:
    (found,) = (s for s in standings if s.backend == backend)
    return found


def test_ratios_are_taken_within_a_run_and_paired_where_they_can_be() -> None:
    w = Workload("matmul", (1024, 1024, 1024), "bfloat16")
    eager = cell("torch_eager", w, kernel_cold_us=around(11.0), versus_best=(1.25, 1.24, 1.26))
    mine = cell("cupy_raw", w, kernel_cold_us=around(10.0))
    bar = BY_NAME["matmul-half-worst"]
    assert figure(bar, "cupy_raw", w, [Run.of("", [eager, mine])]).value == 1.25, "of the pair, not of the medians: 1.1"
    assert figure(bar, "cupy_raw", w, [Run.of("", [eager]), Run.of("", [mine])]).value is None
    tiny = BY_NAME["launch"].workloads[0]
    cells = [cell("torch_eager", tiny, launch_us=around(2.0), call_us=around(5.0)), cell("cupy_raw", tiny, launch_us=around(3.0))]
    assert figure(BY_NAME["launch"], "cupy_raw", tiny, [Run.of("", cells)]).value == 1.5
    assert figure(BY_NAME["call"], "cupy_raw", tiny, [Run.of("", cells)]).value == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("over", "at_most", "values", "value", "verdict"),
    [
        (EACH, False, (0.9, 1.0), 0.9, SHORT),
        (EACH, False, (0.95, 1.0), 0.95, MET),
        (EACH, False, (0.9, None), 0.9, SHORT),
        (EACH, False, (1.0, None), 1.0, NOT_MEASURED),
        (EACH, True, (0.9, 1.0), 1.0, SHORT),
        (GEOMETRIC_MEAN, False, (0.5, 2.0), 1.0, MET),
        (GEOMETRIC_MEAN, False, (0.5, None), 0.5, NOT_MEASURED),  # what is missing may lift it
        (SUM, True, (0.4, 0.5), 0.9, MET),
        (SUM, True, (0.9, 0.5), 1.4, SHORT),
        (SUM, True, (0.9, 0.5, None), 1.4, SHORT),  # what is missing only adds
        (SUM, True, (0.4, None), 0.4, NOT_MEASURED),
        (EACH, False, (None, None), None, NOT_MEASURED),
    ],
)
def test_how_figures_become_a_verdict(
    over: str, at_most: bool, values: tuple[float | None, ...], value: float | None, verdict: str
) -> None:
    bar = Bar("x", "x", "sol", (), {"triton_jit": 0.95}, "", over=over, at_most=at_most)
    found = Standing(bar, "triton_jit", tuple(Figure("w", () if v is None else (v,)) for v in values))
    assert (found.value and pytest.approx(found.value), found.verdict) == (value, verdict)


def test_the_recorded_run_is_judged_by_its_own_records() -> None:
    records = core_run()
    bar, run = BY_NAME["square-sol"], Run.of("core", records)
    for standing in judged([bar], [run]):
        of_backend = [r for r in records if r.op == "square" and r.backend == standing.backend and r.workload in bar.workloads]
        assert len(of_backend) == len(bar.workloads) - len(standing.missing) > 0
        assert standing.value == min(r.sol for r in of_backend if r.sol is not None)
    assert run.device == H200.device


def test_the_shipped_runs_on_the_terminal_as_json_and_as_markdown(tmp_path: Path) -> None:
    folder = str(ROOT / "results" / "nvidia-h200")
    told = invoke(folder)
    assert told.exit_code in (0, 1)
    assert H200.device in told.output.splitlines()[0]
    assert all(bar.what[:12] in told.output for bar in BARS)
    lines = [json.loads(line) for line in invoke(folder, "--json").output.splitlines() if line.startswith("{")]
    assert [(x["bar"], x["backend"]) for x in lines] == [(bar.name, backend) for bar in BARS for backend in HELD]
    assert all(len(x["workloads"]) == len(BY_NAME[x["bar"]].workloads) for x in lines)
    table = [line for line in invoke(folder, "--markdown").output.splitlines() if line.startswith("| ")]
    assert len(table) == 2 + len(BARS)
    assert all(line.count("|") == 3 + len(HELD) for line in table)
    assert invoke("--device", "nvidia-h200", "--out", str(tmp_path), "--json").exit_code == told.exit_code, "what ships counts too"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-such-run"], "no stored run fits"),
        (["--device", "nvidia-b9000"], "no run of nvidia-b9000"),
        (["--device", "cpu"], "give cuda:0 or a recorded GPU"),
        (["--measure", "h200"], "--measure takes no runs"),
    ],
)
def test_bad_usage_says_what_is_taken(arguments: list[str], says: str) -> None:
    told = invoke(*arguments)
    assert told.exit_code == 2
    assert says in " ".join(told.output.split())


def test_runs_of_two_devices_are_not_judged_together(tmp_path: Path) -> None:
    stored(tmp_path, cell("triton_jit", SOFTMAX))
    stored(tmp_path, cell("triton_jit", SOFTMAX, device="NVIDIA Other"), device="nvidia-other")
    told = invoke(str(tmp_path))
    assert told.exit_code == 2
    assert "--device takes one of them" in told.output
    assert invoke(str(tmp_path), "--device", "nvidia-toy").exit_code == 1


def test_what_is_no_run_is_left_out_with_a_warning(tmp_path: Path) -> None:
    stored(tmp_path, cell("triton_jit", SOFTMAX))
    append(tmp_path / "nvidia-toy" / "20250101T000000Z-core-x.jsonl", [json.dumps({"schema": 99})])
    with pytest.warns(UserWarning, match="left out"):
        runs = read_runs(sorted(tmp_path.rglob("*.jsonl")))
    assert len(runs) == 1


def test_measuring_takes_three_runs_and_judges_these(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sessions are played by a recording of one, since nothing can be timed here."""
    planned: list[tuple[object, ...]] = []
    carried: list[bool] = []
    older = stored(tmp_path, *[replace(r, sol=0.1) for r in full_run()], name="20250101T000000Z-bars-abc1234")

    class Played:
        jobs = records = ()

        def __init__(self, number: int) -> None:
            self.path = stored(tmp_path, *full_run(), name=f"20260102T00000{number}Z-bars-abc1234")

        @classmethod
        def planned(cls, found: object, filters: list[str], label: str, *, variants: bool, timed: bool, out: Path) -> Played:
            planned.append((tuple(filters), label, variants, timed, out))
            return cls(len(planned))

    def carry_out(session: object, first_call: bool) -> bool:
        carried.append(first_call)
        return False

    monkeypatch.setattr(command, "Session", Played)
    monkeypatch.setattr(command, "carry_out", carry_out)
    monkeypatch.setattr(command, "surveyed", lambda name: name)
    monkeypatch.setattr(command, "chosen_device", lambda name: "cuda:0")
    told = invoke("--measure", "--out", str(tmp_path), "--json")
    assert told.exit_code == 0, told.output
    assert planned == [((), "bars", False, True, tmp_path)] * 3
    assert carried == [True, False, False]
    lines = [json.loads(line) for line in told.output.splitlines() if line.startswith("{")]
    assert {w["runs"] for x in lines for w in x["workloads"]} == {3}
    assert older.exists()


def test_measuring_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "chosen_device", lambda name: "cpu")
    told = invoke("--measure")
    assert told.exit_code == 2
    assert "torch sees no GPU" in told.output
