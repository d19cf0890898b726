"""Files that look right or fast without being so, `tests/cheats`: each is rejected, for the reason that it names, and costs nobody else."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pretend_gpu import PretendQueue

from opwise import backends, own
from opwise.measure.timing import Clock
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.record import Interval, Record
from opwise.runner import Job, Patience, run_jobs
from opwise.runner.apart import Apart
from opwise.runner.cell import Bench, execute
from opwise.runner.judge import Judge
from opwise.runner.truth import kinds_of

GPU = torch.cuda.is_available()
WORKLOAD = Workload("softmax", (33, 130), "float32")
HONEST = "torch_eager/softmax"
KINDS = tuple(kinds_of(OPS["softmax"]))


def told(path: Path) -> dict[str, str]:
    """The file's constants, without running it."""
    found = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)]
    return {target.id: node.value.value for node in found for target in node.targets if isinstance(target, ast.Name)}  # type: ignore[misc]


CHEATS = {path.stem: path for path in sorted((Path(__file__).parent / "cheats").glob("*.py"))}
TOLD = {name: told(path) for name, path in CHEATS.items()}
CHECKED = [name for name in CHEATS if "WHERE" not in TOLD[name]]
TIMED = [name for name in CHEATS if TOLD[name].get("WHERE") == "timed"]


def names_of(name: str) -> list[str]:
    text = CHEATS[name].read_text()
    variants = ast.literal_eval(f"[{','.join(line.split(':')[0] for line in text.splitlines() if ': lambda: ' in line)}]")
    return [f"{name}/softmax:{v}" for v in variants] or [f"{name}/softmax"]


def carried_out(job: Job) -> dict[str, Record]:
    events = run_jobs([job], job.device, setup=own.setup(CHEATS), patience=Patience(60.0, 60.0))
    return {r.implementation: r for event in events for r in event.records}


@pytest.fixture(scope="module")
def checked() -> dict[str, Record]:
    """All of them in one worker, each before an honest one's turn and behind another's."""
    names = [n for name in CHECKED for n in names_of(name)]
    return carried_out(Job(WORKLOAD, (*names[::2], HONEST, *names[1::2]), "cuda:0" if GPU else "cpu", timed=False))


@pytest.mark.xdist_group("cheats")
@pytest.mark.parametrize("name", CHECKED)
def test_a_cheat_is_rejected_when_it_is_checked(checked: dict[str, Record], name: str) -> None:
    for implementation in names_of(name):
        record = checked[implementation]
        assert record.status in ("wrong", "failed"), record
        assert TOLD[name]["REJECTED"] in record.reason, record.reason


@pytest.mark.xdist_group("cheats")
def test_cheats_cost_their_own_rows_only(checked: dict[str, Record]) -> None:
    assert (checked[HONEST].status, checked[HONEST].reason) == ("ok", "")
    assert checked[HONEST].seed is not None, "the judge's"


def fake_bench() -> Bench:
    """The CPU in the GPU's place: three buffer sets, launches in graphs."""
    clock = Clock(torch.device("cpu"), queue=PretendQueue(int(0.6 * 2 * 4 * math.prod(WORKLOAD.shape))))
    roofs: Any = SimpleNamespace(limit_us=lambda *work, capped=False: 1e-6)
    return Bench(torch.device("cpu"), {}, clock, roofs)


def test_a_cheat_is_rejected_when_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "BACKENDS", dict(backends.BACKENDS))
    monkeypatch.setattr("opwise.runner.cell.MOST_COLD_S", 0.05)
    monkeypatch.setattr("opwise.runner.apart._sleep", lambda s: None)
    own.install({name: CHEATS[name] for name in TIMED})
    judge = Judge(torch.device("cpu"), chance=lambda: 0.0)
    judge.begin(WORKLOAD)
    job = Job(WORKLOAD, (HONEST, *(f"{name}/softmax" for name in TIMED)), "cpu")
    turns: list[tuple[str, str]] = []
    cells: list[Apart] = []

    def make(job: Job, bench: Bench, turn: Any) -> Apart:
        cells.append(Apart(judge, job, bench, turn))
        return cells[-1]

    found = execute(job, fake_bench(), lambda *turn: turns.append(turn), make)
    assert len(cells[0].sets) == 3
    assert {phase for name, phase in turns if name} >= {"cold", "warm", "launch", "call"}
    for records in (found, judge.settled(found)):
        honest, *cheats = records
        assert (honest.status, honest.reason) == ("ok", "")
        assert honest.timed
        for name, record in zip(TIMED, cheats, strict=True):
            assert record.status == "wrong", record
            assert TOLD[name]["REJECTED"] in record.reason, record.reason
            assert not record.timed


@pytest.mark.skipif(not GPU, reason="streams and graphs need a GPU")
def test_a_cheat_of_streams_and_graphs_is_rejected() -> None:
    names = [name for name in CHEATS if "WHERE" in TOLD[name]]
    found = carried_out(Job(Workload("softmax", (512, 1024), "float32"), (HONEST, *(f"{name}/softmax" for name in names)), "cuda:0"))
    assert found[HONEST].status == "ok", found[HONEST].reason
    assert found[HONEST].timed
    for name in names:
        record = found[f"{name}/softmax"]
        assert record.status == "wrong", (name, record)
        assert TOLD[name]["REJECTED"] in record.reason, (name, record.reason)


@pytest.mark.parametrize(
    ("kinds", "timed", "status"),
    [((), False, "wrong"), (("easy", "hard"), False, "wrong"), (KINDS, False, "ok"), (KINDS, True, "wrong"),
     ((*KINDS, "timed 1"), True, "ok")],
)  # fmt: skip
def test_a_record_is_ok_only_where_the_judge_has_seen_it_so(kinds: tuple[str, ...], timed: bool, status: str) -> None:
    judge = Judge(torch.device("cpu"))
    judge.begin(WORKLOAD)
    judge.refill()
    for kind in kinds:
        judge.shown("mine/softmax", kind, math.nan, torch.softmax(judge._truth(kind).inputs[0], -1))
    interval = Interval(1.0, 1.0, 1.0, 30) if timed else None
    (record,) = judge.settled([Record.of("mine/softmax", WORKLOAD, status="ok", kernel_cold_us=interval)])
    assert record.status == status, record.reason
    assert ("the judge saw no" in record.reason) == (status == "wrong")
    assert record.timed == (status == "ok" and timed)
    refused = Record.of("mine/softmax", WORKLOAD, status="failed", reason="boom")
    assert judge.settled([refused])[0].reason == "boom"
