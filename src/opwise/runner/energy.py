"""`opwise run --energy`, before the times: joules of a launch, one cell after the other, since power is the whole GPU's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from opwise.measure.energy import Energy, energy
from opwise.runner.jobs import Entry, Job
from opwise.runner.supervisor import Worker, WorkerLost

Measured = dict[tuple[str, str], Energy]  # (implementation, workload)


def all_energy(
    jobs: Sequence[Job], catalogue: Mapping[str, Entry], device: str, setup: Callable[[], None] | None, say: Callable[[str], None]
) -> Measured:
    """Energies of the cells of all jobs with an available backend, in one worker; a lost worker costs its cell and is replaced. Empty
    without a GPU. say: progress callback."""
    if device == "cpu":
        return {}
    cells = [(name, str(job.workload)) for job in jobs for name in job.implementations if catalogue[name.split("/")[0]].available]
    found: Measured = {}
    worker: Worker | None = None
    try:
        for done, cell in enumerate(cells):
            say(f"energy: {done} of {len(cells)} cells, {cell[1]} {cell[0].split('/')[0]}")
            try:
                worker = worker or Worker(device, setup)
                found[cell] = worker.ask("apply", (energy, device, *cell))
            except WorkerLost as lost:
                found[cell] = Energy(energy_note=f"no energy: {lost.reason}")
                if worker is not None:
                    worker.kill()
                worker = None
    finally:
        if worker is not None:
            worker.kill()
    return found
