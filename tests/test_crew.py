"""Many GPUs of one machine: every job once, the longest first, a broken GPU left. test_compiling.py has what comes before."""

from __future__ import annotations

import gc
import io
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import faulty
import pytest
import torch
from rich.console import Console
from stand_ins import NAMES, PLACES, POISON, FakeSeat, crew_of, job, records_of

from opwise.commands.progress import Shown
from opwise.ops.spec import Workload
from opwise.record import Interval
from opwise.runner import Event, Job, WorkerLost, arrival, run_jobs
from opwise.runner.seat import Seat
from opwise.runner.session import Session
from opwise.runner.survey import Survey
from opwise.scaling import Stranded
from opwise.scaling.crew import Crew, Place, merged, slimmed
from opwise.scaling.gpus import Gpu

ROOT = Path(__file__).resolve().parents[1]


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


def test_all_workers_look_at_once_and_end_at_once() -> None:
    """A step passes where all three are at it at the same time: one after the other would wait for ever, and break."""
    together = threading.Barrier(3, timeout=10)

    class Met(FakeSeat):
        def ask(self, kind: str, payload: Any = None, patience: Any = None) -> Any:
            together.wait()
            return super().ask(kind, payload, patience)

        def kill(self) -> None:
            together.wait()
            super().kill()

    seats = [Met(f"cuda:{i}") for i in range(3)]
    crew = crew_of(*seats, places=[Place(f"GPU {i}", "cuda:0") for i in range(3)])
    told = crew.start()
    assert told is not None
    assert told[0]["device"] == "cuda:0", "the first one's answer is that of all"
    crew.kill()
    assert not any(seat.worker for seat in seats)


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


def test_roofs_of_several_gpus_are_the_best_of_each() -> None:
    assert merged([{"a_us": 2.0, "b_gb_per_s": 1.0}, {"a_us": 1.0, "b_gb_per_s": 3.0, "c_us": 4.0}]) == {
        "a_us": 1.0, "b_gb_per_s": 3.0, "c_us": 4.0,
    }  # fmt: skip


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


SWEEP = """
import resource, sys, time
sys.path.insert(0, "tests")
from stand_ins import FakeSeat, NAMES
from opwise.ops.spec import Workload
from opwise.record import Interval
from opwise.runner import Job
from opwise.runner.session import Session
from opwise.runner.survey import Survey
from opwise.scaling.crew import Crew, Place
from stand_ins import FACTS
from pathlib import Path
names = tuple(f"torch_eager/square:{i}" if i else "torch_eager/square" for i in range(5))
def resident(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
imported, began = resident(), time.perf_counter()
jobs = [Job(Workload("square", (n,), "float32"), names, "cuda:0") for n in range(1, 2001)]
crew = Crew([Place(f"GPU {i}", "cuda:0") for i in range(64)], make_seat=FakeSeat, compiles=False)
from opwise.runner.jobs import Entry
found = Survey("cuda:0", FACTS, {"torch_eager": Entry("torch_eager", {"torch": "2"})})
session = Session(found, jobs, "core", Path(sys.argv[1]), executor=crew)
events = session.events()
next(e for e in events if e.records)
first = time.perf_counter() - began
for _ in events: pass
print(first, time.perf_counter() - began, len(session.records), imported, resident())
"""


@pytest.mark.xdist_group("crew")
def test_ten_thousand_cells_on_64_workers(tmp_path: Path) -> None:
    """They start within 2 s, weigh under 60 MB in the parent (300 in all, with a torch that is 230 of them), and cost under 5 ms a job."""
    done = subprocess.run([sys.executable, "-c", SWEEP, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    first_s, all_s, cells, imported, megabytes = map(float, done.stdout.split())
    assert cells == 10_000
    assert first_s < 2
    assert megabytes - imported < 60
    assert megabytes < 300 or imported > 240, "torch with CUDA is larger"
    assert all_s < 10, "10 s are 5 ms a job"


def test_a_crew_costs_little_more_than_the_runner_for_one_gpu() -> None:
    """Over 200 jobs that take nothing: what one costs more in a crew than in `run_jobs`' own loop."""
    jobs = [job(n) for n in range(1, 201)]
    began = time.perf_counter()
    for each in jobs:
        list(FakeSeat("a").run(each))
    alone = time.perf_counter() - began
    began = time.perf_counter()
    list(crew_of(FakeSeat("a"), places=PLACES[:1], compiles=False)(jobs, "cuda:0"))
    assert (time.perf_counter() - began - alone) / len(jobs) < 0.05
    assert callable(run_jobs)


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
    with pytest.raises(WorkerLost, match="was to have GPU-0aaabbbb and sees GPU-1ccccccc"):
        crew.start()


def test_what_is_missing_on_arrival_is_left_to_those_who_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here no GPU, and libraries that are not there or cannot be imported."""
    tried: list[str] = []

    def imported(name: str) -> None:
        tried.append(name)
        raise AttributeError(name)

    monkeypatch.setattr(arrival.importlib, "import_module", imported)
    arrival.arrive(torch.device("cuda", 63))
    assert {"numba.cuda", "cupy.cuda", "triton.language", "opwise.backends.triton_jit.softmax"} <= set(tried)
    assert gc.isenabled()


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
