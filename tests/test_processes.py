"""A job in several processes: one record a cell, made of planted ones; what is wrong in one is wrong; what is not through is not stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from invoking import command
from stand_ins import CATALOGUE, FACTS, NAMES, job, records_of

from opwise.commands.progress import Shown
from opwise.record import Interval, Record, read
from opwise.runner import Event, Job
from opwise.runner.merging import merged
from opwise.runner.processes import BATCH, Processes
from opwise.runner.session import Session
from opwise.runner.stored_plan import StoredPlan
from opwise.runner.survey import Survey

EAGER, TRITON = NAMES


def timed(name: str, us: float, ratio: float = 1.0, **changed: Any) -> Record:
    """With an interval of 1 % of the time and of the ratio; of an op that moves 1 GB/s in 1000 us and is allowed 4 us."""
    versus = (1.0, 1.0, 1.0) if ratio == 1 else (ratio, ratio * 0.99, ratio * 1.01)
    (record,) = records_of(job(64, (name,)))
    cold = Interval(us, us * 0.99, us * 1.01, 40, "events")
    return replace(record, kernel_cold_us=cold, versus_best=versus, limit_us=4.0, sol=4.0 / us, gb_per_s=1000 / us, seed=1, **changed)


def in_processes(*rows: tuple[float, float]) -> dict[str, list[Record]]:
    """Of each process the times of torch eager and Triton, which begin the ratios to the faster of the two."""
    return {EAGER: [timed(EAGER, a, a / min(a, b)) for a, b in rows], TRITON: [timed(TRITON, b, b / min(a, b)) for a, b in rows]}


def test_three_processes_make_one_record() -> None:
    eager, triton = merged(in_processes((10.0, 8.0), (11.0, 8.8), (10.4, 8.0)), 3)
    assert (eager.processes, eager.seed, eager.status) == (3, 1, "ok")
    assert eager.kernel_cold_us == Interval(10.4, 9.9, 11.11, 120, "events")
    assert triton.kernel_cold_us is not None
    assert (triton.kernel_cold_us.median, triton.versus_best) == (8.0, (1.0, 1.0, 1.0))
    assert eager.versus_best == pytest.approx((1.25, 1.25 * 0.99, 1.3 * 1.01)), "from the least end to the greatest"
    assert eager.us_by_process == {"full": (10.0, 11.0, 10.4)}
    assert [v and v[0] for v in eager.versus_by_process["full"]] == pytest.approx([1.25, 1.25, 1.3])
    assert (eager.sol, eager.gb_per_s) == pytest.approx((4.0 / 10.4, 1000 / 10.4)), "of the time that is kept"


def test_ratios_are_to_one_and_the_same_even_where_another_is_the_fastest_in_some_process() -> None:
    eager, triton = merged(in_processes((10.0, 10.2), (10.0, 9.0), (10.0, 9.0)), 3)
    assert triton.versus_best == (1.0, 1.0, 1.0)
    assert eager.versus_best is not None
    assert eager.versus_best[0] == pytest.approx(10 / 9)
    assert eager.versus_best[1] == pytest.approx(10 / 10.2 / 1.01), "and its interval holds 1"


def test_a_state_that_one_process_alone_met_is_that_of_all() -> None:
    capped = Interval(12.0, 11.9, 12.1, 40, "events")
    found = in_processes((10.0, 8.0), (10.0, 8.0))
    for of in found.values():
        of[0] = replace(of[0], kernel_capped_us=capped, capped_versus_best=(1.0, 1.0, 1.0))
    eager, triton = merged(found, 2)
    assert eager.us_by_process == {"full": (10.0, 10.0), "capped": (12.0, 10.0)}
    assert (eager.kernel_capped_us and eager.kernel_capped_us.median, triton.kernel_capped_us and triton.kernel_capped_us.low) == (
        11.0,
        7.92,
    )
    assert eager.capped_versus_best is not None
    assert eager.capped_versus_best[0] == pytest.approx((1.0 + 1.25) / 2)


def test_a_time_that_one_process_does_not_have_leaves_the_ranking_open() -> None:
    found = in_processes((10.0, 8.0), (10.0, 8.0))
    found[EAGER][1] = replace(found[EAGER][1], kernel_cold_us=None, versus_best=None)
    eager, _ = merged(found, 2)
    assert eager.us_by_process == {"full": (10.0, None)}
    assert eager.versus_by_process["full"][1] is None


def test_the_line_says_so_and_is_read_again() -> None:
    eager, _ = merged(in_processes((10.0, 8.0), (11.0, 8.8)), 2)
    assert Record.from_json(eager.to_json()) == eager
    assert "process" not in timed(EAGER, 10.0).to_json(), "of one process a line is as it was"


def test_wrong_in_one_process_is_wrong_and_says_in_how_many_it_was_not() -> None:
    found = in_processes((10.0, 8.0), (10.0, 8.0), (10.0, 8.0))
    found[TRITON][1:] = [replace(records_of(job(64, (TRITON,)), status="wrong")[0], kernel_cold_us=None, reason="nan at [3]")]
    eager, triton = merged(found, 3)
    assert (triton.status, triton.reason, triton.timed) == ("wrong", "ok in 1 process before: nan at [3]", False)
    assert (eager.status, eager.versus_best) == ("ok", (1.0, 1.0, 1.0)), "the fastest of what is right in all"


# -- carried out -------------------------------------------------------------------------------------------------------------------


class Played:
    """An executor whose processes are counted. `bad`: (process, implementation) -> status there."""

    def __init__(self, bad: dict[tuple[int, str], str] | None = None) -> None:
        self.bad, self.calls = bad or {}, list[list[Job]]()

    def __call__(self, jobs: list[Job], device: str, on_limits: Callable[[dict[str, float]], None], **_: Any) -> Iterator[Event]:
        self.calls.append(list(jobs))
        number = len(self.calls)
        for each in jobs:
            yield Event(each, turn=(each.implementations[0], "cold"))
            yield Event(each, records=tuple(replace(r, status=self.bad.get((number, r.implementation), "ok")) for r in records_of(each)))
        on_limits({"copy_8_bytes_gb_per_s": float(number)})


def test_each_batch_goes_through_all_processes_before_the_next() -> None:
    played, limits = Played(), list[dict[str, float]]()
    jobs = [job(n) for n in range(1, BATCH + 3)]
    events = list(Processes(played, 3)(jobs, "cuda:0", on_limits=limits.append))
    assert played.calls == [jobs[:BATCH]] * 3 + [jobs[BATCH:]] * 3
    stored = [r for e in events for r in e.records]
    assert [(str(r.workload), r.implementation) for r in stored] == [(str(j.workload), n) for j in jobs for n in j.implementations]
    assert {r.processes for r in stored} == {3}
    assert sum(e.passes or 0 for e in events) == 3 * len(stored), "a bar comes to its end"
    assert limits == [{"copy_8_bytes_gb_per_s": 6.0}], "the best roofs, once"


def test_what_is_bad_in_one_process_is_not_tried_in_the_next() -> None:
    played = Played({(1, TRITON): "timeout"})
    events = list(Processes(played, 3)([job(5)], "cuda:0"))
    assert [[j.implementations for j in call] for call in played.calls] == [[NAMES], [(EAGER,)], [(EAGER,)]]
    assert [(r.implementation, r.status, r.processes) for e in events for r in e.records] == [(EAGER, "ok", 3), (TRITON, "timeout", 1)]
    assert sum(e.passes or 0 for e in events) == 6


def session_in(out: Path) -> Session:
    session = Session.planned(Survey("cuda:0", FACTS, CATALOGUE), ["square"], "smoke", variants=False, timed=True, out=out, processes=3)
    session.executor = Played()
    return session


def test_what_is_not_through_all_processes_is_not_stored_and_resumed(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    wanted = Counter((n, str(j.workload)) for j in session.jobs for n in j.implementations)
    shown = Shown(session)
    for event in (events := session.events()):
        shown.take(event)
        if len(session.executor.calls) == 3 and event.passes:  # type: ignore[attr-defined]
            events.close()
            break
    assert (shown.cells, session.records) == (3 * sum(wanted.values()), [])
    assert shown.done > 2 * sum(wanted.values())
    path = session.path
    assert path is not None
    assert read(path) == []
    assert StoredPlan.read(path).processes == 3
    rest = Session.resumed(Survey("cuda:0", FACTS, CATALOGUE), path)
    rest.executor = Played()
    list(rest.events())
    assert Counter((r.implementation, str(r.workload)) for r in read(path)) == wanted
    assert {r.processes for r in read(path)} == {3}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--processes", "0"), "1 to 9 are taken"),
        (("--processes", "10"), "1 to 9 are taken"),
        (("--processes", "3", "--gpus", "all"), "leave out --gpus and --scheduler"),
        (("--processes", "3", "--resume", "x"), "and --processes from the run that it finishes"),
    ],
)
def test_what_the_command_refuses(arguments: tuple[str, ...], says: str) -> None:
    result = command("run")(*arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())
