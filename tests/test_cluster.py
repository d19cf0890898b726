"""Many machines, played by a real Dask cluster: every job once, whatever dies; and a no that says why, before any job is sent."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Scheduler, SpecCluster, Worker
from stand_ins import FACTS, NAMES, POISON, BreakingPost, BusyPost, FakePost, job
from typer.testing import CliRunner

from opwise.cli import app
from opwise.record import read, read_extra
from opwise.runner import Event, Job
from opwise.runner.session import Session
from opwise.scaling import Stranded, flights, joining
from opwise.scaling.cluster import BadCluster, Cluster
from opwise.scaling.crew import slimmed
from opwise.scaling.joining import check_same

ROOT = Path(__file__).resolve().parents[1]
pytestmark = [
    pytest.mark.xdist_group("dask"),  # one cluster for all
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),  # Dask's, of its sockets
]


def started(port: int = 0) -> SpecCluster:
    """A scheduler and two workers in this process; one offers a GPU of another model beside."""
    offers = ({"GPU": 1}, {"GPU": 1, "GPU-H200": 1})
    workers = {
        i: {"cls": Worker, "options": {"nthreads": 1, "resources": offer, "dashboard_address": None}} for i, offer in enumerate(offers)
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": "127.0.0.1:0", "port": port, "host": "127.0.0.1"}}
    return SpecCluster(workers=workers, scheduler=scheduler, silence_logs=50)


@pytest.fixture(scope="module")
def local() -> Iterator[SpecCluster]:
    with started() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _sockets() -> Iterator[None]:
    """Dask leaves sockets of a scheduler that died to the garbage collector, which would warn of them in some later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def joined(address: str, make: Callable[[], Any] = FakePost, **options: Any) -> Cluster:
    return Cluster(address, make_post=make, **{"answer_s": 5.0, "return_s": 3.0, **options})


def records_in(events: Iterator[Event]) -> Counter[tuple[str, str, str]]:
    return Counter((r.implementation, str(r.workload), r.status) for e in events for r in e.records)


def all_ok(jobs: list[Job]) -> Counter[tuple[str, str, str]]:
    return Counter((name, str(each.workload), "ok") for each in jobs for name in each.implementations)


# -- what a cluster does --------------------------------------------------------------------------------------------------------


def test_jobs_are_spread_and_compiled_for_first(local: SpecCluster, tmp_path: Path) -> None:
    log = tmp_path / "log"
    jobs = [job(n) for n in range(1, 30)]
    limits: list[dict[str, float]] = []
    with joined(local.scheduler_address, partial(FakePost, str(log))) as cluster:
        found = cluster.look()
        assert found.facts["device"] == "NVIDIA Toy"
        began = time.perf_counter()
        events = list(cluster(jobs, found.device, facts=found.facts, on_limits=limits.append))
        assert (time.perf_counter() - began) / len(jobs) < 0.1, "what Dask costs a job; two at once, on a core that others use too"
    assert records_in(iter(events)) == all_ok(jobs)
    assert len({e.place for e in events if e.records}) == 2
    lines = log.read_text().splitlines()
    assert [line.startswith("prepare") for line in lines] == [True] * len(NAMES) + [False] * len(jobs)
    assert sum(e.phase is not None for e in events) == 1
    assert limits == [{"copy_8_bytes_gb_per_s": 1.0}]


def test_models_are_told_apart_by_their_resource(local: SpecCluster) -> None:
    with joined(local.scheduler_address, model="H200") as cluster:
        found = cluster.look()
        assert len({e.place for e in cluster([job(n) for n in range(1, 9)], found.device, facts=FACTS) if e.records}) == 1


def test_a_job_that_fails_everywhere_is_marked_after_three(local: SpecCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("opwise.scaling.cluster.STRIKES", 9)
    log = tmp_path / "log"
    with joined(local.scheduler_address, partial(BreakingPost, str(log))) as cluster:
        cluster.look()
        found = records_in(cluster([job(3), job(POISON), job(5)], "cpu", facts=FACTS))
    assert log.read_text().count(f"square/{POISON + 1}/float32") == 3
    assert found == all_ok([job(3), job(5)]) + Counter((n, f"square/{POISON}/float32", "failed") for n in NAMES)


# -- what it refuses, before any job is sent ------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense://x", "missing.json"])
def test_a_bad_address_is_one_line(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opwise.scaling.cluster.ANSWER_S", 0.5)
    done = CliRunner().invoke(app, ["run", "--scheduler", address])
    assert done.exit_code == 2
    assert address in done.output
    assert "tcp://host:8786" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gpus", "0", "--scheduler", "x"], "exclude each other"),
        (["--gpu-model", "H200"], "give --scheduler"),
        (["--scheduler", "x", "--first-call"], "without --scheduler"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["run", *arguments])
    assert (done.exit_code, says in " ".join(done.output.split())) == (2, True), done.output


def refused(address: str, make: Callable[[], Any] = FakePost, **options: Any) -> str:
    with pytest.raises(BadCluster) as no, joined(address, make, **options) as cluster:
        cluster.look()
    return str(no.value)


def test_workers_that_do_not_fit_are_refused(local: SpecCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    address = local.scheduler_address
    assert "no worker with the resource GPU-A100 (2 workers, offering GPU, GPU-H200)" in refused(address, model="A100")
    assert "computed on by process 12 (python): wait for it" in refused(address, BusyPost)
    with monkeypatch.context() as patch:
        patch.setattr(joining, "_versions", lambda found, real=joining._versions: real(found) | {"python": str(id(found))})
        assert "install the same on both" in refused(address)
    with monkeypatch.context() as patch:  # what the client has; the workers have been asked by code of their own
        patch.setattr(joining.opwise, "__version__", "9.9")
        patch.setattr(joining, "_looker", lambda: lambda: {"version": "0.1", "commit": [], "sources": ""})
        assert "opwise version 0.1, this client 9.9: install the same" in refused(address)
    with monkeypatch.context() as patch:
        patch.setattr(joining, "_looker", lambda: lambda: {"missing": "ModuleNotFoundError: No module named 'opwise'"})
        assert "cannot import opwise (ModuleNotFoundError: No module named 'opwise'): install opwise" in refused(address)
    with monkeypatch.context() as patch:
        patch.setattr(joining, "sources", lambda: "others")
        assert "kernels of other sources" in refused(address)
    with monkeypatch.context() as patch:
        patch.setattr(flights, "Seen", lambda name, host, threads, resources: SeenAs(name, host, 4, resources))
        assert "has 4 threads" in refused(address)
    with pytest.raises(BadCluster, match="--with is taken on one machine"):
        Cluster(address, files={"mine": Path("mine.py")})


SeenAs = flights.Seen


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"device": "NVIDIA Other"}, "device NVIDIA Toy, worker b NVIDIA Other, and one run is of one: --gpu-model"),
        ({"driver": "2.0"}, "driver 1.0, worker b 2.0"),
        ({"versions": {"torch": "2.1"}}, "versions torch 2.0, worker b torch 2.1"),
    ],
)
def test_one_run_is_of_one_kind_of_machine(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(BadCluster) as no:
        check_same({"a": FakePost().look(), "b": FakePost(facts=changed).look()})
    assert says in str(no.value)
    check_same({"a": FakePost().look(), "b": FakePost(facts={"gpu": "GPU-2"}).look()})


def test_a_scheduler_that_comes_back_is_given_the_rest(tmp_path: Path) -> None:
    """Under its address, with workers that know nothing of what was before. What was under way runs again."""
    jobs, log = [job(n, timed=False) for n in range(1, 20)], tmp_path / "log"
    first = started()
    port = int(first.scheduler_address.rpartition(":")[2])
    second: list[SpecCluster] = []
    found: Counter[tuple[str, str, str]] = Counter()
    try:
        with joined(first.scheduler_address, partial(FakePost, str(log), pause_s=0.05), return_s=30.0, answer_s=5.0) as cluster:
            cluster.look()
            for event in cluster(jobs, "cpu", facts=FACTS):
                found.update((r.implementation, str(r.workload), r.status) for r in event.records)
                if len(found) >= 6 and not second:
                    first.close()
                    second.append(started(port))
    finally:
        for each in (first, *second):
            each.close()
    assert found == all_ok(jobs)
    assert len(jobs) <= len(log.read_text().splitlines()) <= len(jobs) + 2


# -- what dies ------------------------------------------------------------------------------------------------------------------


POISONOUS = "square/1/float16"  # among the first to be sent: its worker may be missed seconds late, and still there is work left


@contextlib.contextmanager
def machines(folder: Path) -> Iterator[list[int]]:
    """The pids of a scheduler and two workers, which are gone at the end, killed or not."""
    around = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, str(ROOT / "tests" / "dask_machines.py"), str(folder)], env=around, text=True,
                                   stdout=subprocess.PIPE, stderr=log)  # fmt: skip
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    try:
        yield pids
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()


def ready(file: Path, workers: int) -> str:
    """The scheduler's file, when it has its workers."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not _complete(file):
        time.sleep(0.05)
    with Client(json.loads(file.read_text())["address"], set_as_default=False) as client:
        client.wait_for_workers(workers, timeout=60)
    return str(file)


def _killing(scheduler: int, session: Session) -> None:
    """Carries the session out, and kills the scheduler when the poisonous job is done."""
    for event in session.events():
        if any(str(r.workload) == POISONOUS for r in event.records):
            os.kill(scheduler, signal.SIGKILL)


def _complete(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_text())["address"])
    except (OSError, ValueError, KeyError):
        return False


@pytest.mark.slow
def test_dead_workers_and_a_dead_scheduler_cost_nothing_that_was_finished(
    local: SpecCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One story, since each process takes seconds to start: a job takes its worker down, and the other worker does it again; then the
    scheduler is killed, and the run is finished from its file by another cluster."""
    monkeypatch.setattr(flights, "ROSTER_S", 0.2)
    log = tmp_path / "jobs"
    make = partial(FakePost, str(log), poison=POISONOUS, pause_s=0.2)
    with machines(tmp_path) as (scheduler, *_), joined(ready(tmp_path / "scheduler.json", 2), make, return_s=1.0, answer_s=2.0) as cluster:
        session = Session.planned(cluster.look(), [], "smoke", variants=False, timed=True, out=tmp_path / "results")
        session.executor = cluster
        with pytest.raises(Stranded, match="did not come back"):
            _killing(scheduler, session)
    ran = Counter(line.split()[1] for line in log.read_text().splitlines() if not line.startswith("prepare"))
    assert ran[POISONOUS] == 2
    held = list(session.records)
    assert {r.status for r in held} == {"ok"}
    assert str(held[-1].workload) == POISONOUS
    assert 0 < len(held) < session.cells
    assert session.path is not None
    assert read(session.path) == [slimmed(r) for r in held]
    assert not read_extra(session.path, "limits")
    with joined(local.scheduler_address, partial(FakePost, str(log))) as cluster:
        rest = Session.resumed(cluster.look(), session.path)
        rest.executor = cluster
        list(rest.events())
    assert Counter((r.implementation, r.workload) for r in read(session.path)) == Counter(
        (name, each.workload) for each in session.jobs for name in each.implementations
    )
    assert rest.refused == 0
