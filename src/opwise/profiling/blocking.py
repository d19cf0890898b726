"""Synchronous launches, to locate a fault: each launch is waited for, so that an error is raised at the kernel that caused it.

CUDA reads CUDA_LAUNCH_BLOCKING when it starts, so this runs in a worker whose environment has it from the start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from opwise.runner import Patience, Worker, WorkerLost

ENVIRONMENT = {"CUDA_LAUNCH_BLOCKING": "1"}


@dataclass(frozen=True)
class Outcome:
    """`error` is "" without a fault. `stage` and `kernel` are those of the error; `kernels` ran before it, in order of first launch."""

    implementation: str
    workload: str
    device: str
    launches: int
    error: str = ""
    stage: str = ""
    kernel: str = ""
    kernels: tuple[str, ...] = ()
    note: str = ""

    @property
    def line(self) -> str:
        """The error in one line, with its kernel if known."""
        where = f"kernel {self.kernel}" if self.kernel else f"{self.stage} (no kernel was launched, or none is known)"
        return f"{self.implementation} at {self.workload}, launch {self.launches}: {where}, during {self.stage}: {self.error}"


def blocked(implementation: str, workload: str, device: str, calls: int, setup: Callable[[], None] | None = None) -> Outcome:
    """Runs `calls` launches in a child process, each waited for. If the child dies, the outcome names the last kernel that it reported."""
    kernel, stage, launches = "", "start", 0
    worker: Worker | None = None
    try:
        worker = Worker(device, setup, ENVIRONMENT)
        request = (_launches, implementation, workload, device, calls)
        for said, what in worker.messages("apply", request, Patience()):
            if said == "turn":
                name, phase = what
                stage = phase
                kernel = name.removeprefix(KERNEL) if name.startswith(KERNEL) else ""
                launches += phase == LAUNCH and not kernel
            else:
                outcome: Outcome = what
    except WorkerLost as lost:
        return Outcome(implementation, workload, device, launches, lost.reason, stage, kernel)
    finally:
        if worker is not None:
            worker.kill()  # a context that has faulted can hang an orderly exit
    return outcome


KERNEL = "kernel: "  # of a turn: what is about to run
LAUNCH = "launch"


def _launches(turn: Callable[[str, str], None], name: str, workload: str, device: str, calls: int) -> Outcome:
    """In the child. Every error but the process's own death is caught here, where the last kernel is known."""
    import torch

    from opwise.backends import implementation
    from opwise.ops.spec import Workload
    from opwise.profiling import cupti
    from opwise.profiling.capture import SEED, Stages, wait

    wanted, place = Workload.parse(workload), torch.device(device)
    stage, done = "build", 0

    def enter(next_stage: str) -> None:
        nonlocal stage
        wait(place)
        launched.names.clear()  # a fault is of the stage that it comes up in
        stage = next_stage
        turn(name, stage)

    with wanted.precision(), torch.no_grad(), cupti.watched(lambda kernel: turn(KERNEL + kernel, stage)) as launched:
        try:
            turn(name, stage)
            found = implementation(name, place)
            enter("make inputs")
            inputs = found.op.make_inputs(wanted, place, SEED)
            enter("build")
            stages = Stages(found, inputs, found.source.build(*inputs, found.op.empty_output(*inputs)))
            for _ in range(calls):
                enter("wrap")
                launch = stages.wrapped(found.op.empty_output(*inputs))
                enter(LAUNCH)
                done += 1
                launch()
                wait(place)
        except Exception as error:
            reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"
            kernel = launched.names[-1] if launched.names else ""
            return Outcome(name, workload, device, done, reason, stage, kernel, tuple(dict.fromkeys(launched.names)), launched.missing)
    return Outcome(name, workload, device, done, kernels=tuple(dict.fromkeys(launched.names)), note=launched.missing)
