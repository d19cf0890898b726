"""The worker: a process that owns one GPU, takes requests from a pipe and answers with results.

It is a process so that a kernel that faults, hangs or is killed costs only its own cell. Before each risky step it names the
implementation, so that the supervisor knows which one to blame. It dies with its supervisor, even if that was killed."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

Request = tuple[str, Any]


def main(
    pipe: Connection, device_name: str, log_path: str, setup: Callable[[], None] | None, environment: Mapping[str, str],
    judge: Connection | None = None,
) -> None:  # fmt: skip
    """`judge`: connection to the process that has the reference, if this one runs foreign code."""
    os.environ.clear()  # it is that of the process which this one was forked from, and which began with the first worker
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's: it stops the worker between two records
    _redirect_output(log_path)
    threading.Thread(target=_die_with_supervisor, daemon=True).start()
    if setup is not None:
        setup()

    def turn(name: str, phase: str) -> None:
        pipe.send(("turn", (name, phase)))

    jobs = _JobHandler(device_name, turn, judge)
    handlers: dict[str, Callable[[Any], Any]] = {
        "start": lambda _: None,
        "catalogue": lambda _: _catalogue(device_name),
        "own": lambda backend: _entry(backend, device_name, own=True),
        "job": jobs,
        "inspect": lambda request: _inspect(*request),
        "prepare": lambda unit: _prepare(device_name, unit, turn),
        "greet": lambda _: _greet(device_name),
        "first_call": lambda request: _first_call(device_name, *request),
        "limits": lambda _: jobs.limits(),
        "apply": lambda request: request[0](turn, *request[1:]),  # any function that can be pickled, told how to say whose turn it is
    }
    while True:
        try:
            kind, payload = pipe.recv()
        except EOFError:
            return
        try:
            answer = handlers[kind](payload)
        except BaseException as error:  # whatever it is, the process cannot be trusted with another job
            pipe.send(("fault", f"{type(error).__name__}: {_first_line(error)}"))
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)  # a dead CUDA context can hang an orderly exit
        pipe.send(("answer", answer))


class _JobHandler:
    """Makes the bench on the first job, so that a worker that only looks around never creates a CUDA context."""

    def __init__(self, device_name: str, turn: Callable[[str, str], None], judge: Connection | None) -> None:
        self.device_name, self.turn, self.judge = device_name, turn, judge
        self.bench: Any = None

    def __call__(self, job: Any) -> Any:
        import torch

        from opwise.runner.apart import Apart
        from opwise.runner.cell import Bench, execute
        from opwise.runner.judge import Remote

        if self.bench is None:
            device = torch.device(self.device_name)
            if device.type == "cuda":
                self.turn("", "calibrate")
                torch.cuda.set_device(device)
            self.bench = Bench.on(device, record_facts(device))
        return execute(job, self.bench, self.turn, partial(Apart, Remote(self.judge)) if self.judge is not None else None)

    def limits(self) -> dict[str, float]:
        roofs = self.bench.roofs if self.bench is not None else None
        return roofs.as_dict() if roofs is not None else {}


def record_facts(device: Any) -> dict[str, Any]:
    """The fields of a Record that describe the machine."""
    from opwise.measure.device import facts, short_uuid
    from opwise.provenance import commit

    found = facts(device)
    head, dirty = commit()
    return {"device": found["device"], "driver": str(found.get("driver") or ""), "capability": str(found.get("capability") or ""),
            "versions": dict(found["versions"]), "commit": head, "dirty": dirty,
            "gpu": short_uuid(str(found.get("uuid") or ""))}  # fmt: skip


def _catalogue(device_name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The device's Record fields, and what each backend is on it. Runs in a worker because it imports every GPU library."""
    import torch

    from opwise.backends import BACKENDS
    from opwise.early import uncollected

    with uncollected():
        found = {backend: _entry(backend, device_name) for backend in BACKENDS}
    return record_facts(torch.device(device_name)), found


def _entry(backend: str, device_name: str, own: bool = False) -> Any:
    """What a backend is here. Of a user's own the error is the user's: it fails, where a backend of the suite is unavailable."""
    import torch

    from opwise.backends import BACKENDS, implementations, probe
    from opwise.backends.protocol import BackendUnavailable
    from opwise.ops import OPS
    from opwise.runner.jobs import Entry

    compiles = not own and _can_compile(backend)
    try:
        probed = probe(backend, torch.device(device_name))
        variants = {op: found for op in OPS if (found := implementations(backend, op, torch.device(device_name).type)) or not own}
    except BackendUnavailable as error:
        return Entry(backend, reason=error.reason, remedy=error.remedy, compiles=compiles, own=own)
    except Exception as error:  # an import that breaks is this backend's trouble, not the others'
        remedy = "" if own else f"see the traceback of `python -c 'import {BACKENDS[backend]}'`"
        reason = f"{type(error).__name__}: {error}"
        return Entry(backend, reason=reason, remedy=remedy, compiles=compiles, own=own, broken="failed" if own else "")
    faults = {i.name: i.source.fault for group in variants.values() for i in group.values() if i.source.fault}
    summaries = {op: {name: i.source.summary for name, i in group.items()} for op, group in variants.items()}
    return Entry(backend, dict(probed.versions), probed.stand_in, variants=summaries, faults=faults, compiles=compiles, own=own)


def _can_compile(backend: str) -> bool:
    from opwise.backends import BACKENDS

    try:
        return hasattr(importlib.import_module(BACKENDS[backend]), "compile_only")
    except Exception:
        return False


def _inspect(backend: str, op: str, arch: str, dtype: str | None) -> Any:
    """The op's variants and its kernels' rows (inspecting.rows.inspected); or why there is no disassembler here."""
    from opwise.inspecting.rows import inspected
    from opwise.inspecting.tools import ToolMissing

    try:
        return inspected(backend, op, arch, dtype)
    except ToolMissing as error:
        return str(error)


def _prepare(device_name: str, unit: Any, turn: Callable[[str, str], None]) -> float:
    from opwise.runner.prepare import prepare

    return prepare(device_name, unit, turn)


def _greet(device_name: str) -> str:
    """Before the jobs of a crew. The answer: which GPU this worker sees, "" on a CPU."""
    import torch

    from opwise.measure.device import short_uuid
    from opwise.runner.arrival import arrive

    device = torch.device(device_name)
    if device.type == "cuda":
        arrive(device)
    return short_uuid(str(torch.cuda.get_device_properties(device).uuid)) if device.type == "cuda" else ""


def _first_call(device_name: str, backend: str, workloads: Any) -> dict[str, float]:
    """Seconds from the first `prepare` of each workload's op to its end, imports of the backend's library included in the first."""
    import torch

    from opwise.backends import implementation
    from opwise.ops import OPS

    device = torch.device(device_name)
    gc.unfreeze()  # a user's process has all that it imported among what it looks through for garbage
    torch.zeros(1, device=device)  # the CUDA context is torch's price, not the backend's
    seconds = {}
    for workload in workloads:
        spec = OPS[workload.op]
        with workload.precision(), torch.no_grad():
            inputs = spec.make_inputs(workload, device, 1)
            out = spec.empty_output(*inputs)
            torch.cuda.synchronize(device)
            began = time.perf_counter()
            implementation(f"{backend}/{workload.op}", device).prepare(*inputs, out=out)()
            torch.cuda.synchronize(device)
            seconds[workload.op] = time.perf_counter() - began
    return seconds


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def _redirect_output(path: str) -> None:
    """Whatever libraries print goes to the log: the terminal belongs to the table."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _die_with_supervisor() -> None:
    """Not with the parent of the operating system, which has others to look after."""
    supervisor = multiprocessing.parent_process()
    assert supervisor is not None
    supervisor.join()
    os._exit(1)
