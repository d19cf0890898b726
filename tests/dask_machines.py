"""A Dask scheduler and two workers, each a process that can be killed: forked from this one, so that torch is imported once.

python dask_machines.py FOLDER      prints the three pids; the scheduler's address is in FOLDER/scheduler.json
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import stand_ins
from distributed import Scheduler, Worker

from opwise.scaling import post

assert stand_ins.FakePost
assert post.look


async def scheduler(file: Path) -> None:
    async with Scheduler(host="127.0.0.1", port=0, scheduler_file=str(file), dashboard_address="127.0.0.1:0") as running:
        await running.finished()


async def worker(file: Path) -> None:
    while not file.exists() or not file.read_text().endswith("}"):
        time.sleep(0.05)
    async with Worker(
        scheduler_file=str(file), nthreads=1, resources={"GPU": 1}, dashboard=False, local_directory=str(file.parent)
    ) as running:
        await running.finished()


def main() -> None:
    file = Path(sys.argv[1]) / "scheduler.json"
    pids = []
    for role in (scheduler, worker, worker):
        if (pid := os.fork()) == 0:
            asyncio.run(role(file))
            os._exit(0)
        pids.append(pid)
    print(*pids, flush=True)  # noqa: T201
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
