"""What the backends are held to: the table of bars, and how figures of recorded runs become bars met or missed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bar_runs import BY_NAME, SOFTMAX, cell, full_run, missing_it
from recorded_runs import around, stored

from opwise.backends import BACKENDS
from opwise.bars.judging import MET, NOT_MEASURED, SHORT, Figure, Run, Standing, figure, judged, read_runs
from opwise.bars.table import BARS, EACH, GEOMETRIC_MEAN, HELD, SUM, WORKLOADS, Bar
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.record import Record
from opwise.run_files import append
from opwise.runner import Entry, plan

CATALOGUE = {name: Entry(name, versions={"x": "1"}, variants={op: {"": ""} for op in OPS}) for name in BACKENDS}


def test_every_hand_written_backend_has_every_bar() -> None:
    assert set(HELD) == set(BACKENDS) - {"torch_eager"}
    assert all(tuple(bar.required) == HELD for bar in BARS)
    assert len(BY_NAME) == len(BARS)
    assert all(w.dtype in OPS[w.op].dtypes for w in WORKLOADS)
    for bar in BARS:
        assert bar.workloads
        assert bar.first_call or set(bar.workloads) <= set(WORKLOADS)
        assert bar.over in (EACH, GEOMETRIC_MEAN, SUM)


@pytest.mark.parametrize("bar", [bar for bar in BARS if not bar.first_call], ids=lambda bar: str(bar.name))
def test_the_command_of_a_bar_measures_its_workloads_beside_torch(bar: Bar) -> None:
    assert bar.command.startswith("opwise run --set bars ")
    jobs = plan(CATALOGUE, bar.command.split()[4:], "bars", "cuda:0")
    found = {job.workload: job.implementations for job in jobs}
    assert set(bar.workloads) <= set(found)
    assert {w.op for w in found} == {w.op for w in bar.workloads}, "and nothing of other ops"
    assert all(f"{backend}/{w.op}" in found[w] for w in bar.workloads for backend in BACKENDS)


def test_a_full_run_meets_all_and_one_miss_is_short() -> None:
    right = full_run()
    assert {s.verdict for s in judged(BARS, [Run.of("", right)])} == {MET}
    for number, bar in enumerate(BARS):
        backend = HELD[number % len(HELD)]
        at = bar.workloads[-1]
        there = [r.compile_cold_s is not None and r.op == at.op if bar.first_call else r.workload == at for r in right]
        changed = [missing_it(bar, r) if here and r.backend == backend else r for r, here in zip(right, there, strict=True)]
        found = judged([bar], [Run.of("", changed)])
        assert [s.backend for s in found if s.verdict == SHORT] == [backend], bar.name


def test_what_is_not_measured_counts_as_not_met() -> None:
    for bar in BARS:
        gone = bar.workloads[0]
        kept = [r for r in full_run() if not (r.op == gone.op and r.compile_cold_s is not None if bar.first_call else r.workload == gone)]
        assert {s.verdict for s in judged([bar], [Run.of("", kept)])} == {NOT_MEASURED}, bar.name


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
    bar = BY_NAME["matmul-half-worst-full"]
    assert figure(bar, "cupy_raw", w, [Run.of("", [eager, mine])]).value == 1.25, "of the pair, not of the medians: 1.1"
    assert figure(bar, "cupy_raw", w, [Run.of("", [eager]), Run.of("", [mine])]).value is None
    tiny = BY_NAME["launch"].workloads[0]
    cells = [cell("torch_eager", tiny, launch_us=around(2.0), call_us=around(5.0)), cell("cupy_raw", tiny, launch_us=around(3.0))]
    assert figure(BY_NAME["launch"], "cupy_raw", tiny, [Run.of("", cells)]).value == 1.5
    assert figure(BY_NAME["call"], "cupy_raw", tiny, [Run.of("", cells)]).value == pytest.approx(0.8)


def test_each_bar_of_a_product_is_judged_by_its_state_of_the_clock() -> None:
    w, names = Workload("matmul", (1024, 1024, 1024), "bfloat16"), ("matmul-half-worst-full", "matmul-half-worst-capped")
    eager = cell("torch_eager", w, versus_best=(1.0, 1.0, 1.0), capped_versus_best=(1.25, 1.24, 1.26))
    mine = cell("cupy_raw", w, versus_best=(1.25, 1.24, 1.26), capped_versus_best=(1.0, 1.0, 1.0))

    def values(*runs: list[Record]) -> list[float | None]:
        return [figure(BY_NAME[name], "cupy_raw", w, [Run.of("", run) for run in runs]).value for name in names]

    assert values([eager, mine]) == [1 / 1.25, 1.25]
    alone = [replace(r, kernel_capped_us=None, capped_versus_best=None) for r in (eager, mine)]
    assert values(alone) == [1 / 1.25, 1 / 1.25], "what the cap does not change counts in both"
    old = [replace(r, kernel_cold_us=None, versus_best=None) for r in (eager, mine)]
    assert values(old) == [None, 1.25], "as schema 1 tells it: power-capped alone"
    others = [replace(r, source="a", versus_best=(1.0, 1.0, 1.0)) for r in (eager, mine)]
    assert values(others, old) == [None, 1.25], "and what other kernels took at full clock is none of theirs"
    assert values([eager, mine], old) == [1 / 1.25, 1.25]


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


def test_what_is_no_run_is_left_out_with_a_warning(tmp_path: Path) -> None:
    stored(tmp_path, cell("triton_jit", SOFTMAX))
    append(tmp_path / "nvidia-toy" / "20250101T000000Z-core-x.jsonl", [json.dumps({"schema": 99})])
    with pytest.warns(UserWarning, match="left out"):
        runs = read_runs(sorted(tmp_path.rglob("*.jsonl")))
    assert len(runs) == 1
