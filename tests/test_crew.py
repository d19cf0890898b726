"""Many GPUs of one machine: every job once, the longest first, a broken GPU left. test_compiling.py has what comes before."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import faulty
import pytest
from rich.console import Console
from stand_ins import NAMES, PLACES, POISON, FakeSeat, crew_of, job, records_of

from opwise.commands.progress import Shown
from opwise.ops.spec import Workload
from opwise.record import Interval
from opwise.runner import Event, Job, WorkerLost
from opwise.runner.seat import Seat
from opwise.runner.session import Session
from opwise.runner.survey import Survey
from opwise.scaling import Stranded
from opwise.scaling.crew import Crew, Place, slimmed
from opwise.scaling.gpus import Gpu


def outcome(crew: Crew, jobs: list[Job]) -> Counter[tuple[str, str, str]]:
    return Counter((r.implementation, str(r.workload), r.status) for e in crew(jobs, "cuda:0", facts={}) for r in e.records)


def test_every_cell_comes_once_and_says_where_from() -> None:
    jobs = [job(n) for n in range(1, 40)]
    limits: list[dict[str, float]] = []
    events = list(crew_of(FakeSeat("a"), FakeSeat("b"), helpers=0)(jobs, "cuda:0", facts={}, on_limits=limits.append))
    records = [r for e in events for r in e.records]
    assert Counter((r.implementation, r.workload) for r in records) == Counter((n, j.workload) for j in jobs for n in NAMES)
    assert all((r.gpu, r.shared) == (p.gpu, p.shared) for e in events for r in e.records for p in PLACES if p.name == e.place)
    assert all(r.kernel_cold_us and not r.kernel_cold_us.rounds for r in records), "rounds are not kept in the parent"
    capped = slimmed(replace(records[0], kernel_capped_us=Interval(5.0, 5.0, 5.0, 40, rounds=(5.0,)))).kernel_capped_us
    assert capped is not None
    assert not capped.rounds
    assert len(limits) == 1, "the roofs of all GPUs are one line"


def test_a_gpu_that_fell_off_the_bus_is_left_to_the_others() -> None:
    dead, alive = FakeSeat("a", dead=True), FakeSeat("b")
    jobs = [job(n) for n in range(1, 20)]
    assert outcome(crew_of(dead, alive, compiles=False), jobs) == Counter((n, str(j.workload), "ok") for j in jobs for n in NAMES)
    assert len(dead.ran) <= 2


def test_a_job_that_takes_its_worker_down_runs_three_times_and_is_marked() -> None:
    seats = [FakeSeat("a"), FakeSeat("b"), FakeSeat("c")]
    places = [Place(f"GPU {i}", "cuda:0") for i in range(3)]
    found = list(crew_of(*seats, places=places, compiles=False)([job(3), job(POISON), job(5)], "cuda:0", facts={}))
    failed = [r for e in found for r in e.records if r.status == "failed"]
    assert [r.implementation for r in failed] == list(NAMES)
    assert all("the GPU fell off the bus" in r.reason for r in failed)
    assert sum(line.startswith(f"square/{POISON}/") for seat in seats for line in seat.ran) == 3
    assert sum(r.status == "ok" for e in found for r in e.records) == 4


def test_without_any_gpu_left_the_run_ends_and_says_why() -> None:
    crew = crew_of(FakeSeat("a", dead=True), FakeSeat("b", dead=True), compiles=False)
    with pytest.raises(Stranded, match="no GPU is left for .* workloads .*GPU 0: the GPU fell off the bus"):
        list(crew([job(n) for n in range(1, 9)], "cuda:0"))


def test_a_place_that_breaks_in_an_unforeseen_way_does_not_hang_the_run() -> None:
    class Odd(FakeSeat):
        def run(self, job: Job) -> Any:
            raise MemoryError("no memory")

    with pytest.raises(Stranded, match="MemoryError: no memory"):
        list(crew_of(Odd("a"), Odd("b"), compiles=False)([job(3), job(5)], "cuda:0"))


@pytest.mark.xdist_group("crew")
def test_two_workers_share_what_a_broken_kernel_leaves() -> None:
    """Real processes, on the CPU: a kernel that kills its worker costs its own cell. It comes last, where nobody takes its place."""
    jobs = [Job(Workload("square", (n,), "float32"), ("torch_eager/square",), "cpu", timed=False) for n in (33, 257)]
    jobs.append(Job(Workload("square", (3,), "float32"), ("faulty/square:killed",), "cpu", timed=False))
    with Crew([Place("CPU 0"), Place("CPU 1")], make_seat=SetUp) as crew:
        crew.start()
        pids = {seat.worker._process.pid for seat in crew.seats if seat.worker}
        assert len(pids) == 2
        found = Counter((r.implementation, r.status) for e in crew(jobs, "cpu", facts={}) for r in e.records)
    assert found == {("faulty/square:killed", "failed"): 1, ("torch_eager/square", "ok"): 2}
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids), "no process is left behind"


class SetUp(Seat):
    """A seat whose workers know the faulty backend, whatever the crew says."""

    def __init__(self, device: str, **options: Any) -> None:
        super().__init__(device, **{**options, "setup": faulty.install})


def test_a_worker_is_pinned_by_uuid_and_must_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, dict[str, str]]] = []

    class Played:
        answer = "GPU-0aaabbbb"

        def __init__(self, device: str, setup: Any, environment: dict[str, str], wait: bool) -> None:
            made.append((device, environment))

        def started(self) -> None: ...

        def ask(self, kind: str, *_: Any) -> Any:
            return self.answer if kind == "greet" else ({}, {})

        def kill(self) -> None: ...

    monkeypatch.setattr("opwise.runner.seat.Worker", Played)
    crew = Crew([Place.on(Gpu(3, "GPU-0aaabbbb-1111", "NVIDIA Toy"))])
    crew.start()
    assert made == [("cuda:0", {"CUDA_VISIBLE_DEVICES": "GPU-0aaabbbb-1111"})]
    crew.kill()
    monkeypatch.setattr(Played, "answer", "GPU-1ccccccc")
    with pytest.raises(WorkerLost, match="should see GPU-0aaabbbb and sees GPU-1ccccccc"):
        crew.start()


def test_the_terminal_shows_all_workers_and_a_line_for_each() -> None:
    jobs = [job(n) for n in (3, 5, 7, 9)]
    session = Session(Survey("cuda:0", {}, {}), jobs, "core", None)
    shown, console = Shown(session), Console(width=120, record=True, file=io.StringIO())
    shown.take(Event(jobs[0], turn=("", "compiling: 3 of 8")))
    assert "compiling: 3 of 8" in rendered(console, shown)
    shown.take(Event(jobs[0], turn=(NAMES[0], "cold"), place="GPU 0"))
    shown.take(Event(jobs[0], records=records_of(jobs[0]), place="GPU 0"))
    shown.take(Event(jobs[1], turn=(NAMES[1], "warm"), place="GPU 1"))
    told = rendered(console, shown)
    assert "2 GPUs" in told
    assert "2/8 cells" in told
    assert "GPU 0  2 cells  square/3/float32" in told
    assert "GPU 1  0 cells  square/5/float32 triton_jit warm" in told
    assert shown.overall.tasks[0].percentage == pytest.approx(25, abs=0.1)


def rendered(console: Console, shown: Shown) -> str:
    console.print(shown.layout)
    return console.export_text()
