"""What the stored runs say together of a cell and of two, and what `choose` makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from invoking import command
from recorded_runs import TOY, cell, store_of, stored
from test_settling import in_processes, ratio

from opwise import library
from opwise.choosing.query import choose_from
from opwise.choosing.spread import Across, Spread
from opwise.ops.spec import Workload
from opwise.record import Record

W = Workload("softmax", (64, 64), "float16")


@pytest.fixture(autouse=True)
def _own_runs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(library, "shipped", lambda: tmp_path / "none")


def pair(cupy_us: float, triton_us: float, seed: int, **changed: object) -> tuple[Record, Record]:
    """One job's two records, CuPy's the yardstick."""
    return (cell("cupy_raw", cupy_us, seed=seed, versus_best=(1.0, 1.0, 1.0), **changed),
            cell("triton_jit", triton_us, seed=seed, versus_best=ratio(triton_us / cupy_us), **changed))  # fmt: skip


def test_runs_of_the_same_sources_are_a_spread_and_others_are_not(tmp_path: Path) -> None:
    newest = pair(10.0, 10.5, 3)
    stored(tmp_path, *pair(10.2, 10.0, 1), name="1")
    stored(tmp_path, *pair(30.0, 40.0, 2, source="0123456789abcdef"), name="2")  # of other kernels
    stored(tmp_path, *pair(50.0, 60.0, 2, shared="process 12"), name="3")
    stored(tmp_path, *pair(50.0, 60.0, 2, driver="2.0"), name="4")
    stored(tmp_path, *pair(50.0, 60.0, 2, shape=(64, 65)), name="5")
    stored(tmp_path, *newest, name="6")
    stored(tmp_path, *pair(50.0, 60.0, 2), name="7", device="another-gpu")
    across = Across.load(newest, library.stored(tmp_path))
    assert across.spread(newest[0], ("full",)) == Spread(2, 2, pytest.approx(0.2 / 10.1))
    assert str(across.spread(newest[0], ("full",))) == "2 runs, 2.0 %"
    assert sorted(r[0] for r in across.ratios(newest[1], newest[0], ("full",))) == pytest.approx([10.0 / 10.2, 1.05])
    assert across.spread(cell("numba_cuda", 1.0), ("full",)) is None


def test_a_run_s_processes_count_each(tmp_path: Path) -> None:
    record = in_processes("triton_jit", 10.0, 10.4, 10.1)
    stored(tmp_path, record)
    across = Across.load([record], library.stored(tmp_path))
    assert str(across.spread(record, ("full",))) == "1 run, 3 processes, 4.0 %"
    alone = Across.load([cell("triton_jit", 10.0)], [stored(tmp_path, cell("triton_jit", 10.0), name="b")])
    assert str(alone.spread(cell("triton_jit", 10.0), ("full",))) == "1 run"


def test_a_damaged_run_is_left_out(tmp_path: Path) -> None:
    newest = pair(10.0, 10.5, 3)
    path = stored(tmp_path, *newest)
    path.with_name("0.jsonl").write_text(path.read_text()[:-20])
    path.with_name("1.jsonl").write_text(newest[0].to_json().replace('"schema": 2', '"schema": 99') + "\n")
    assert str(Across.load(newest, library.stored(tmp_path)).spread(newest[1], ("full",))) == "1 run"


def test_what_another_run_turns_round_is_a_tie(tmp_path: Path) -> None:
    """Triton asks for less than CuPy, and is 5 % slower in the newest run."""
    newest = pair(10.0, 10.5, 3)
    stored(tmp_path, *newest, name="2")
    alone = choose_from(store_of(*newest), W, TOY, runs=library.stored(tmp_path))
    assert alone.backend == "cupy_raw", "one run alone is as it was"
    stored(tmp_path, *pair(10.0, 10.6, 1), name="1")
    assert choose_from(store_of(*newest), W, TOY, runs=library.stored(tmp_path)).backend == "cupy_raw", "two runs agree"
    stored(tmp_path, *pair(10.0, 9.9, 2), name="0")
    choice = choose_from(store_of(*newest), W, TOY, runs=library.stored(tmp_path))
    assert (choice.backend, choice.chosen.tied, choice.chosen.across) == ("triton_jit", True, "3 runs, 6.7 %")
    assert "by what is known of runs and processes not to be told from cupy_raw" in choice.why
    assert choose_from(store_of(*newest), W, TOY).backend == "cupy_raw", "what is dispatched goes by the newest record"


def test_what_another_process_turns_round_is_a_tie_for_all(tmp_path: Path) -> None:
    cupy = in_processes("cupy_raw", 10.0, 10.0, 10.0)
    assert choose_from(store_of(cupy, in_processes("triton_jit", 10.5, 10.6, 10.5)), W, TOY).backend == "cupy_raw"
    assert choose_from(store_of(cupy, in_processes("triton_jit", 10.5, 10.6, 9.9)), W, TOY).backend == "triton_jit"


@pytest.mark.parametrize(
    ("us", "says"),
    [
        ((12.0, 12.1, 12.0), "settled: the same in 3 processes"),
        ((10.3, 10.7, 10.5), "not settled against triton_jit: 3 processes differ, or are too near to 1 %"),
        ((12.0, 12.1), "within this run: 2 processes; opwise run softmax/64x64/float16 --processes 3 settles it"),
    ],
)
def test_choose_says_whether_it_is_settled(tmp_path: Path, us: tuple[float, ...], says: str) -> None:
    stored(tmp_path, in_processes("cupy_raw", *(10.0,) * len(us)), in_processes("triton_jit", *us))
    output = command("choose")("softmax", "--shape", "64x64", "--dtype", "float16", "--out", str(tmp_path)).output
    assert f"\n{says}\n" in output
    assert f"over {len(us)} processes" in output
    assert "across runs" in output


def test_of_one_process_choose_names_the_command(tmp_path: Path) -> None:
    stored(tmp_path, *pair(10.0, 12.0, 1))
    asked = ("softmax", "--shape", "64x64", "--dtype", "float16", "--out", str(tmp_path))
    output = command("choose")(*asked).output
    assert "\nwithin this run: one process; opwise run softmax/64x64/float16 --processes 3 settles it\n" in output
    assert "within its run" in output
    assert "settle" not in command("choose")(*asked, "--for", "call").output, "of a call's cost nobody keeps it by process"
    stored(tmp_path, *(replace(r, call_us=replace(r.call_us, median=99.0)) for r in pair(10.0, 12.0, 2) if r.call_us), name="9")
    assert "across runs" not in command("choose")(*asked).output, "the call is what counts"
