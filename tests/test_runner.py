"""A kernel that faults or is killed costs its own cell, marked with the reason; every other cell is there. test_own.py has others."""

from __future__ import annotations

import multiprocessing.connection
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faulty
import pytest
import torch

from opwise.ops.spec import Workload
from opwise.record import Record, read
from opwise.runner import Job, Patience, Worker, WorkerLost, run_jobs

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
WORKLOAD = Workload("square", (257,), "float32")
QUICK = Patience(turn_s=20.0, build_s=20.0)


def outcome(*variants: str, workloads: tuple[Workload, ...] = (WORKLOAD,)) -> dict[str, Record]:
    names = tuple(f"faulty/square:{v}" if v else "faulty/square" for v in variants)
    jobs = [Job(w, (*names, "torch_eager/square"), DEVICE, timed=False) for w in workloads]
    events = list(run_jobs(jobs, DEVICE, setup=faulty.install, patience=QUICK))
    records = [r for e in events for r in e.records]
    assert sorted(r.implementation for r in records) == sorted(n for job in jobs for n in job.implementations)
    assert all(r.status == "ok" for r in records if r.backend == "torch_eager")
    return {r.variant: r for r in records if r.backend == "faulty"}


@pytest.mark.parametrize(("variant", "status", "reason"), [("exit", "failed", "exit status 7"), ("killed", "failed", "SIGKILL")])
def test_a_broken_kernel_costs_its_own_cell(variant: str, status: str, reason: str) -> None:
    records = outcome("", variant)
    assert records[""].status == "ok"
    assert records[variant].status == status
    assert reason in records[variant].reason


def test_an_illegal_address_leaves_the_others_whole() -> None:
    records = outcome("illegal", "", workloads=(WORKLOAD, Workload("square", (33,), "float16")))
    assert records["illegal"].status == "failed"
    assert records[""].status == "ok"


def test_a_job_that_cannot_make_its_inputs_fails_whole_and_the_next_runs() -> None:
    huge = Workload("square", (1 << 50,), "float32")
    jobs = [Job(huge, ("torch_eager/square",), DEVICE, timed=False), Job(WORKLOAD, ("torch_eager/square",), DEVICE, timed=False)]
    records = [r for e in run_jobs(jobs, DEVICE) for r in e.records]
    assert [r.status for r in records] == ["failed", "ok"]


def test_a_worker_that_is_killed_while_idle_is_reported() -> None:
    worker = Worker(DEVICE)
    assert worker._process.pid is not None
    os.kill(worker._process.pid, signal.SIGKILL)
    with pytest.raises(WorkerLost, match="SIGKILL"):
        worker.ask("limits")
    worker.kill()


def test_a_worker_that_ends_just_before_it_is_killed_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker("cpu")
    os.kill(worker._process.pid, signal.SIGKILL)
    multiprocessing.connection.wait([worker._process.sentinel], 30)  # it has ended, and nobody has asked for it yet
    monkeypatch.setattr(worker._process, "is_alive", lambda: True)
    worker.kill()


def test_workers_started_at_once_each_get_their_own_environment() -> None:
    """The first calls are timed with caches of their own: a setting that leaks from one worker to another would spoil them."""

    def told(n: int) -> str:
        with Worker(DEVICE, environment={"OPWISE_COMMIT": f"worker{n}"}) as worker:
            facts, _ = worker.ask("catalogue", None, Patience(120.0))
        return str(facts["commit"])

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(told, range(3))) == ["worker0", "worker1", "worker2"]
    assert not os.environ.get("OPWISE_COMMIT", "").startswith("worker")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_run_leaves_every_finished_record_readable(tmp_path: Path, how: signal.Signals) -> None:
    command = [sys.executable, "-m", "opwise", "run", "square", "torch_eager", "--set", "smoke", "--out", str(tmp_path), "--device", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None and not any('"cell"' in p.read_text() for p in tmp_path.glob("*/*.jsonl")):
        time.sleep(0.02)
    os.killpg(process.pid, how)
    process.communicate(timeout=60)
    (path,) = tmp_path.glob("*/*.jsonl")
    assert read(path)
    assert process.returncode in (-how, 130, 0)
