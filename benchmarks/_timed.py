"""Times every cell on this machine's GPU: one run of the project's own runner, in the process that asv starts for it.

`opwise.ops` and `opwise.backends` are the commit's here, all else is the working tree's (asv_inplace.py).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Any

from benchmarks._parameters import BACKENDS, SHAPES

Cells = dict[tuple[str, ...], dict[str, Any]]
MICROSECOND = 1e-6


def timed_cells(ops: Iterable[str]) -> Cells:
    """(op, backend, shape, dtype) -> status, reason and figures, in seconds and bytes. Empty without a GPU: stand-ins have no times."""
    if importlib.util.find_spec("opwise.backends") is None:  # a commit before there were any
        return {}
    from opwise.runner import run_jobs, survey

    device = survey.default_device()
    if device == "cpu":
        return {}
    cells: Cells = {}
    for event in run_jobs([job for op in ops for job in _jobs(op, device)], device):
        for record in event.records:
            cells[record.op, record.backend, "x".join(map(str, record.shape)), record.dtype] = _figures(record)
    return cells


def _jobs(op: str, device: str) -> list[Any]:
    """One a workload, of the backends that this commit has the op in. Whether they work here is found out by the job itself."""
    import opwise.backends
    from opwise.ops import OPS
    from opwise.ops.spec import Workload
    from opwise.runner import Job

    if op not in OPS:
        return []
    folders = {name: opwise.backends.BACKENDS[name] for name in BACKENDS if name in opwise.backends.BACKENDS}
    names = tuple(f"{name}/{op}" for name, package in folders.items() if _holds(package, op))
    workloads = [Workload.parse(f"{op}/{shape}/{dtype}") for shape in SHAPES[op] for dtype in OPS[op].dtypes]
    return [Job(workload, names, device, brief=True) for workload in workloads if names]


def _holds(package: str, op: str) -> bool:
    try:
        return importlib.util.find_spec(f"{package}.{op}") is not None
    except Exception:  # a backend that does not import: its cells will say why
        return True


def _figures(record: Any) -> dict[str, Any]:
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
    return {"samples": [us * MICROSECOND for us in interval.rounds], "number": 1}
