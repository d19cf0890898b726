"""`opwise bars`: what it prints, and that it exits 1 where a bar is missed or not measured."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import invoking
import pytest
from bar_runs import BY_NAME, SOFTMAX, cell, full_run, missing_it
from recorded_runs import stored

from opwise import library
from opwise.bars.table import BARS, HELD
from opwise.commands import bars as command
from opwise.commands.executors import Ready

invoke = invoking.command("bars")


def test_a_full_run_passes(tmp_path: Path) -> None:
    told = invoke(str(stored(tmp_path, *full_run())))
    assert told.exit_code == 0, told.output
    assert f"{len(BARS) * len(HELD)} bars: {len(BARS) * len(HELD)} met, 0 short, 0 not measured" in told.output
    assert "falls short" not in told.output
    assert "stale: " not in told.output


def test_one_miss_makes_the_command_fail_and_names_the_workload(tmp_path: Path) -> None:
    bar = BY_NAME["softmax-long"]
    changed = [missing_it(bar, r) if (r.backend, r.workload) == ("numba_cuda", SOFTMAX) else r for r in full_run()]
    told = invoke(str(stored(tmp_path, *changed)))
    assert told.exit_code == 1
    assert f"numba_cuda falls short: {bar.what}, worst of {len(bar.workloads)}: {SOFTMAX} 0.899" in told.output
    assert told.output.count("falls short") == 1


@pytest.mark.parametrize("name", ["matmul-half-mean-capped", "first-call-cold"])
def test_what_is_not_measured_fails_and_says_how_to_measure_it(name: str, tmp_path: Path) -> None:
    bar = BY_NAME[name]
    gone = bar.workloads[0]
    kept = [r for r in full_run() if not (r.op == gone.op and r.compile_cold_s is not None if bar.first_call else r.workload == gone)]
    told = invoke(str(stored(tmp_path, *kept)))
    assert told.exit_code == 1
    assert f"not measured: {bar.what}, 1 of {len(bar.workloads)}: {bar.command}" in told.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-such-run"], "no stored run fits"),
        (["--device", "nvidia-b9000"], "no run of nvidia-b9000"),
        (["--device", "cpu"], "give cuda:0 or a recorded GPU"),
        (["--measure", "h200"], "--measure takes no runs"),
        (["--gpus", "all"], "give --measure too"),
        (["--measure"], "torch sees no GPU"),
    ],
)
def test_bad_usage_says_what_is_taken(arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "chosen_device", lambda name: name or "cpu")
    stored(tmp_path, cell("triton_jit", SOFTMAX))
    monkeypatch.setattr(library, "shipped", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
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


def test_measuring_takes_three_runs_and_judges_these(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sessions are played by a recording of one, since nothing can be timed here."""
    planned: list[tuple[object, ...]] = []
    carried: list[bool] = []
    older = stored(tmp_path, *[replace(r, sol=0.1) for r in full_run()], name="20250101T000000Z-bars-abc1234")

    class Played:
        jobs = records = ()
        stranded = ""

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
    monkeypatch.setattr(command, "ready", lambda device, gpus_, share: nullcontext(Ready(device)))
    monkeypatch.setattr(command, "chosen_device", lambda name: "cuda:0")
    told = invoke("--measure", "--out", str(tmp_path), "--json")
    assert told.exit_code == 0, told.output
    assert planned == [((), "bars", False, True, tmp_path)] * 3
    assert carried == [True, False, False]
    lines = [json.loads(line) for line in told.output.splitlines() if line.startswith("{")]
    assert {w["runs"] for x in lines for w in x["workloads"]} == {3}
    assert older.exists()
