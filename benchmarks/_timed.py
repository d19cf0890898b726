"""Times cells on this machine's GPU: one run of the project's own runner, in the process that asv starts for it. Cells whose kernels were
measured before are carried over (_carried.py).

`opwise.ops` and `opwise.backends` are the commit's here, all else is the working tree's (asv_inplace.py).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks._carried import Cell, Key, Store, compared, control
from benchmarks._order import Order, counting

Cells = dict[tuple[str, ...], dict[str, Any]]
MICROSECOND = 1e-6
MOST_SAMPLES = 24  # of a figure: more tell nothing more, and every commit's are kept
CODE_S = 900.0  # of building what is asked for its machine code, without a sign of life


def timed_cells(order: Order) -> Cells:
    """(op, backend, shape, dtype) -> status, reason and figures, in seconds and bytes. Empty without a GPU: stand-ins have no times."""
    if importlib.util.find_spec("opwise.backends") is None:  # a commit before there were any
        return {}
    from opwise.runner import survey

    device = survey.default_device()
    keys = list(there(order, order.timed)) if device != "cpu" else []
    if not keys:
        return {}
    sources = {(op, backend): _source(backend, op) for op, backend in {key[:2] for key in keys}}
    if order.store is None:
        return _measured(keys, device, order)
    store = Store(order.store, order.commit, _versions(device))
    found = {key: hit for key in keys if (hit := store.find(key, sources[key[:2]]))}
    codes = _codes([key for key in keys if key not in found], device, order)
    for key, code in codes.items():
        if hit := store.find(key, sources[key[:2]], code):  # a call goes through sources that changed: its cost is not carried over
            found[key] = hit[0], {name: value for name, value in hit[1].items() if name != "call_cost"}
    again = control(keys) & found.keys()
    missing = [key for key in keys if key not in found or key in again]
    order.say(f"{len(keys) - len(missing)} of {len(keys)} cells are carried over, {len(missing)} are measured")
    cells = _measured(missing, device, order)
    said = compared({key: (found[key][1], cells[key]) for key in again if key in cells})
    order.say(said or "control: none of the cells measured again was carried over")
    for key, cell in cells.items():
        cell["carried"] = 0
        store.measured(key, sources[key[:2]], codes.get(key, ""), cell)
    for key in (key for key in keys if key not in cells and key in found):
        origin, cell = found[key]
        cells[key] = {**cell, "carried": 1}
        store.carried(key, sources[key[:2]], codes.get(key, ""), origin)
    store.write(said)
    return cells


def there(order: Order, asked: Collection[Key]) -> Iterator[Key]:
    """What this commit has of the cells that are asked for."""
    import opwise.backends
    from opwise.ops import OPS

    first: dict[str, str] = {}
    for op, backend, shape, dtype in asked:
        if op not in OPS or dtype not in OPS[op].dtypes or backend not in opwise.backends.BACKENDS:
            continue
        if order.quick and first.setdefault(op, shape) != shape:
            continue
        if _holds(opwise.backends.BACKENDS[backend], op):
            yield op, backend, shape, dtype


def _holds(package: str, op: str) -> bool:
    try:
        return importlib.util.find_spec(f"{package}.{op}") is not None
    except Exception:  # a backend that does not import: its cells will say why
        return True


def _measured(keys: Collection[Key], device: str, order: Order) -> dict[Key, Cell]:
    """A job a workload, of the backends that are wanted of it. Whether they work here is found out by the job itself."""
    from opwise.ops.spec import Workload
    from opwise.runner import Job, run_jobs

    names: dict[str, list[str]] = {}
    for op, backend, shape, dtype in keys:
        names.setdefault(f"{op}/{shape}/{dtype}", []).append(f"{backend}/{op}")
    jobs = [Job(Workload.parse(workload), tuple(wanted), device, brief=True) for workload, wanted in names.items()]
    step = counting(order.say, "workloads measured", len(jobs))
    cells: dict[Key, Cell] = {}
    for event in run_jobs(jobs, device) if jobs else ():
        for record in event.records:
            cells[record.op, record.backend, "x".join(map(str, record.shape)), record.dtype] = _figures(record)
        if event.records:
            step()
    return cells


def _codes(keys: Collection[Key], device: str, order: Order) -> dict[Key, str]:
    """Digests of the machine code that launches run, "" where it cannot be told: such a cell is measured. A worker a backend: a kernel
    that faults takes its process along."""
    from opwise.profiling.machine_code import digests
    from opwise.runner import Patience, Worker, WorkerLost

    found: dict[Key, str] = dict.fromkeys(keys, "")
    backends = list(dict.fromkeys(key[1] for key in keys))
    step = counting(order.say, "building what may have changed, backend by backend", len(backends), every_s=0.0)

    def told(backend: str) -> None:
        mine = {(f"{backend}/{op}", f"{op}/{shape}/{dtype}"): (op, b, shape, dtype) for op, b, shape, dtype in keys if b == backend}
        try:
            with Worker(device) as worker:
                answer = worker.ask("apply", (digests, device, tuple(mine)), Patience(CODE_S, CODE_S))
            found.update({mine[cell]: code for cell, code in answer.items()})
        except WorkerLost as lost:
            order.say(f"{backend}: {lost.reason}; what it has is measured")
        step()

    with ThreadPoolExecutor(max(1, len(backends))) as pool:
        list(pool.map(told, backends))
    return found


def _source(backend: str, op: str) -> str:
    """As a record has it (provenance.source), of the commit's files."""
    import opwise.backends
    from opwise.provenance import source

    return source(backend, op, package=Path(opwise.backends.__file__ or "").resolve().parents[1])


def _versions(device: str) -> dict[str, str]:
    import torch

    from opwise.measure.device import facts

    told = facts(torch.device(device))
    return {**{name: str(v) for name, v in sorted(told["versions"].items())}, "driver": str(told["driver"]), "gpu": str(told["device"])}


def _figures(record: Any) -> Cell:
    return {
        "status": record.status,
        "reason": record.reason,
        "kernel_cold": _samples(record.kernel_cold_us),
        "kernel_capped": _samples(record.kernel_capped_us),
        "call_cost": _samples(record.call_us),
        "error_ratio": record.error_ratio,
        "extra_bytes": record.extra_bytes,
    }


def _samples(interval: Any) -> dict[str, Any] | None:
    """What asv takes for a value with its spread: a sample is the median of a block, so that one disturbed launch is no sample."""
    if interval is None:
        return None
    step = -(-len(interval.rounds) // MOST_SAMPLES)
    return {"samples": [float(f"{us * MICROSECOND:.5g}") for us in interval.rounds[::step]], "number": 1}
