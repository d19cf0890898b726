"""A run that was stopped is finished by another process: its plan is in its file, what it holds is not measured again."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stand_ins import CATALOGUE, FACTS, played, records_of
from typer.testing import CliRunner

from opwise.cli import app
from opwise.commands import executors
from opwise.locks import Lock
from opwise.record import read, read_extra
from opwise.run_files import append
from opwise.runner import Event, Job
from opwise.runner.session import Session
from opwise.runner.stored_plan import VERSION, CannotResume, StoredPlan
from opwise.runner.survey import Survey

FOUND = Survey("cuda:0", FACTS, CATALOGUE)


def session_in(out: Path, *filters: str, **options: Any) -> Session:
    session = Session.planned(FOUND, list(filters), "smoke", variants=True, timed=True, out=out, **options)
    session.executor = played
    return session


def stopped(out: Path, after: int) -> tuple[Path, Session]:
    """A run of square that was stopped after some events with records."""
    session = session_in(out, "square")
    events = session.events()
    while len({r.workload for r in session.records}) < after:
        next(events)
    events.close()
    assert session.path is not None
    return session.path, session


def test_the_rest_is_run_and_appended(tmp_path: Path) -> None:
    path, first = stopped(tmp_path, after=2)
    held = read(path)
    assert held == [replace(r, **{n: replace(getattr(r, n), rounds=()) for n in ("kernel_cold_us",)}) for r in first.records]
    rest = Session.resumed(FOUND, path)
    rest.executor = played
    assert len(rest.jobs) == len(first.jobs) - 2
    list(rest.events())
    wanted = Counter((n, str(j.workload)) for j in first.jobs for n in j.implementations)
    assert Counter((r.implementation, str(r.workload)) for r in read(path)) == wanted
    assert read(path)[: len(held)] == held, "what was there stays as it was"
    assert len(rest.records) == len(read(path)), "the table is of the whole run"
    assert len(list(path.parent.iterdir())) == 1
    again = Session.resumed(FOUND, path)
    assert not again.jobs


def test_the_plan_is_what_was_asked_for(tmp_path: Path) -> None:
    session = session_in(tmp_path, "square/33/*", "torch_eager", brief=True)
    list(session.events())
    assert session.path is not None
    (line,) = read_extra(session.path, "plan")
    assert line["plan"] == VERSION
    stored = StoredPlan.read(session.path)
    assert stored == StoredPlan("smoke", ("square/33/*", "torch_eager"), True, True, True, (), "NVIDIA Toy", "abc1234", False)
    assert all(r.op == "square" for r in read(session.path)), "a reader of cells does not see the plan"
    resumed = Session.resumed(FOUND, session.path)
    assert not resumed.jobs


def test_a_torn_line_is_ended_before_more_is_written(tmp_path: Path) -> None:
    path, _ = stopped(tmp_path, after=1)
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[-1][:50])
    with pytest.warns(UserWarning, match="torn"):
        rest = Session.resumed(FOUND, path)
    rest.executor = played
    list(rest.events())
    with pytest.warns(UserWarning, match="torn"):
        found = read(path)
    assert Counter((r.implementation, str(r.workload)) for r in found) == Counter(
        (n, str(j.workload)) for j in session_in(tmp_path, "square").jobs for n in j.implementations
    )


def test_a_cell_is_stored_once_whatever_the_executor_does(tmp_path: Path) -> None:
    def twice(jobs: Any, device: str, **options: Any) -> Any:
        for job in jobs:
            yield Event(job, records=records_of(job))
            yield Event(job, records=records_of(job, status="failed"))

    session = session_in(tmp_path, "square", "float32")
    session.executor = twice
    list(session.events())
    assert session.path is not None
    assert all(r.status == "ok" for r in read(session.path))
    assert len(session.records) == len(read(session.path)) == session.cells == session.refused


def test_a_job_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a process killed in between leaves a workload whole or not at all: times are compared within it."""
    written: list[int] = []
    monkeypatch.setattr("opwise.runner.session.append", lambda path, lines: (written.append(len(lines)), append(path, lines)))
    session = session_in(tmp_path, "square", "float32")
    list(session.events())
    assert set(written) == {1}
    assert session.path is not None
    assert len(read(session.path)) == session.cells > len(session.jobs)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"device": "NVIDIA Other"}, "begun on NVIDIA Toy, here is NVIDIA Other"),
        ({"commit": "fff0000"}, "begun at abc1234, here is fff0000"),
        ({"commit": ""}, "begun at abc1234, here is no commit"),
    ],
)
def test_another_device_or_commit_is_refused(tmp_path: Path, changed: dict[str, str], says: str) -> None:
    path, _ = stopped(tmp_path, after=1)
    with pytest.raises(CannotResume) as refused:
        Session.resumed(Survey("cuda:0", {**FACTS, **changed}, CATALOGUE), path)
    assert says in str(refused.value)


def test_a_run_without_a_plan_or_of_a_later_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "toy" / "run.jsonl"
    append(path, [r.to_json() for r in records_of(Job(session_in(tmp_path, "square").jobs[0].workload, ("torch_eager/square",), "cuda:0"))])
    with pytest.raises(CannotResume, match="holds no plan"):
        StoredPlan.read(path)
    later = json.loads(StoredPlan("smoke").line()) | {"plan": VERSION + 1}
    append(path, [json.dumps(later)])
    with pytest.raises(CannotResume, match=f"version {VERSION + 1}, {VERSION} is taken"):
        StoredPlan.read(path)


def test_a_run_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    path, _ = stopped(tmp_path, after=1)
    rest = Session.resumed(FOUND, path)
    with Lock(path), pytest.raises(CannotResume, match="being written by another opwise"):
        next(rest.events())


@pytest.fixture
def on_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command on a machine with a toy GPU, where every job is played."""
    monkeypatch.setattr(executors, "_one", lambda kept, device, files, share: executors.Ready(FOUND, played))


@pytest.mark.usefixtures("on_toy")
def test_the_command_finishes_a_run_and_refuses_to_change_it(tmp_path: Path) -> None:
    path, first = stopped(tmp_path, after=1)

    def invoke(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["run", "--out", str(tmp_path), "--resume", *arguments])

    refused = invoke(path.stem, "--variants")
    assert (refused.exit_code, "leave them out" in refused.output) == (2, True)
    assert invoke("20990101").exit_code == 2
    original = Session.resumed
    session: list[Session] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "resumed", lambda found, path: session.append(original(found, path)) or session[0])
        done = invoke(path.stem)
    assert done.exit_code == 0, done.output
    assert len(read(path)) == first.cells == len(session[0].records)
    assert "cells are left" in done.output
    assert "nothing is left to do" in invoke(path.stem).output
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    refused = invoke(path.stem)
    assert (refused.exit_code, "is compressed, and nothing can be appended" in refused.output) == (2, True)
