"""`opwise run --facts`, before the times: tests whether results are bitwise the same each time, in another process, and in any batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from opwise.measure.sameness import Cells, Facts, digests, facts
from opwise.runner.jobs import Entry, Job
from opwise.runner.supervisor import Patience, Worker, WorkerLost

PATIENCE = Patience(900.0, 900.0)  # a cell may build a kernel a batch
Found = dict[tuple[str, str], Facts]  # (implementation, workload)


def all_facts(
    jobs: Sequence[Job], catalogue: Mapping[str, Entry], device: str, setup: Callable[[], None] | None, say: Callable[[str], None]
) -> Found:
    """Facts of the cells of all jobs with an available backend, backends in parallel; empty without a GPU, since stand-ins say nothing
    about it."""
    if device == "cpu":
        return {}
    cells: dict[str, list[tuple[str, str]]] = {}
    for job in jobs:
        for name in job.implementations:
            if catalogue[name.split("/")[0]].available:
                cells.setdefault(name.split("/")[0], []).append((name, str(job.workload)))
    found: Found = {}
    with ThreadPoolExecutor(max(1, len(cells))) as pool:
        for done, answer in enumerate(pool.map(lambda mine: in_two_processes(mine, device, setup), cells.values()), start=1):
            found |= answer
            say(f"repeatable? batch-invariant? {done} of {len(cells)} backends")
    return found


def in_two_processes(cells: Cells, device: str, setup: Callable[[], None] | None) -> Found:
    """Facts from two processes, one after the other. A lost worker leaves its cells without an answer."""
    try:
        with Worker(device, setup) as worker:
            one: Found = worker.ask("apply", (facts, device, tuple(cells)), PATIENCE)
        with Worker(device, setup) as worker:
            other: dict[tuple[str, str], str] = worker.ask("apply", (digests, device, tuple(cells)), PATIENCE)
    except WorkerLost as lost:
        return {cell: Facts(differs=f"not found out: {lost.reason}") for cell in cells}
    return {cell: joined(one[cell], other[cell]) for cell in cells}


def joined(fact: Facts, bits: str) -> Facts:
    """The facts combined with the other process's digests."""
    if not fact.repeatable or bits == fact.bits:
        return fact
    if not bits:
        return fact._replace(repeatable=None, differs="not found out: a second process fails")
    return Facts(False, None, "another process has another result", fact.bits)
