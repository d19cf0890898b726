"""Carries out jobs and returns records: each GPU has one worker process, so a faulting kernel costs only its own cell."""

from __future__ import annotations

from opwise.runner.jobs import SETS, Entry, Job, UnknownName, plan
from opwise.runner.seat import run_jobs
from opwise.runner.supervisor import Event, Executor, Patience, Worker, WorkerLost

__all__ = ["SETS", "Entry", "Event", "Executor", "Job", "Patience", "UnknownName", "Worker", "WorkerLost", "plan", "run_jobs"]
