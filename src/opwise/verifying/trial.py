"""Runs a case in a worker: each implementation against the reference, and all against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from opwise.backends import implementation, probe
from opwise.backends.protocol import BackendUnavailable, UnsupportedWorkload
from opwise.measure.validate import agree, check, judge
from opwise.ops import OPS
from opwise.ops.spec import OpSpec
from opwise.record import BAD
from opwise.runner.kernels_run import kernels_run
from opwise.runner.prepare import launching
from opwise.verifying.case import Case

SUSPECT = "all implementations agree with each other: suspect the reference"


@dataclass(frozen=True)
class Outcome:
    """`status` as in a record, or `left out` if the case needs more than float32 or torch's own CPU kernels promise."""

    implementation: str
    status: str
    reason: str = ""
    error_ratio: float | None = None
    stand_in: str | None = None
    kernels: tuple[str, ...] = ()

    @property
    def bad(self) -> bool:
        return self.status in BAD


def tried(turn: Callable[[str, str], None], device_name: str, case: Case, names: Sequence[str]) -> list[Outcome]:
    """An outcome for each of the implementations. A worker's request ("apply")."""
    device, spec = torch.device(device_name), OPS[case.workload.op]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with case.workload.precision(), torch.no_grad():
        inputs = case.inputs(device)
        exact = [x.double() for x in inputs]
        reference = spec.reference(*exact)
        bound = spec.error_bound(case.workload, reference, *exact)
        if case.values == "special" and (reason := _not_promised(spec, inputs, reference, bound)):
            return [Outcome(name, "left out", reason) for name in names]
        outputs: dict[str, Tensor] = {}
        found = [_tried(turn, case, name, inputs, reference, bound, outputs) for name in names]
        wrong = [o for o in found if o.status == "wrong"]
        if len(outputs) == len(wrong) > 1 and max(agree(outputs, bound).values()) <= 1:
            found = [replace(o, reason=f"{o.reason}; {SUSPECT}") if o in wrong else o for o in found]
        return found


def _tried(
    turn: Callable[[str, str], None], case: Case, name: str, inputs: tuple[Tensor, ...], reference: Tensor, bound: Tensor,
    outputs: dict[str, Tensor],
) -> Outcome:  # fmt: skip
    device = inputs[0].device
    said: dict[str, Any] = {}
    turn(name, "build")
    try:
        said["stand_in"] = probe(name.partition("/")[0], device).stand_in
        if case.values == "special" and said["stand_in"] == "cpu":
            # VDPBF16PS takes subnormals as zero, and AMX makes a nan of 0 times an inf that is another row's.
            return Outcome(name, "left out", "torch's CPU kernels do not promise special values", **said)
        found, out = implementation(name, device), case.output(tuple(reference.shape), device).tensor
        with kernels_run(said["stand_in"]) as kernels:
            launch = found.prepare(*inputs, out=out)
            turn(name, launching(name))
            launch()
        said["kernels"] = tuple(kernels)
        turn(name, "check")
        verdict = check(found.prepare, inputs, reference, bound, offset=case.offsets[-1])
    except (BackendUnavailable, UnsupportedWorkload) as error:
        return Outcome(name, "unavailable" if isinstance(error, BackendUnavailable) else "unsupported", str(error), **said)
    except Exception as error:  # of this implementation; a broken GPU shows at the synchronize, and takes the worker with it
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return Outcome(name, "failed", f"{type(error).__name__}: {error}", **said)
    outputs[name] = out
    return Outcome(name, "ok" if verdict.ok else "wrong", verdict.reason, verdict.error_ratio, **said)


def _not_promised(spec: OpSpec, inputs: tuple[Tensor, ...], reference: Tensor, bound: Tensor) -> str:
    """Of special values the definition in float32 may itself not follow float64: a sum of the largest numbers overflows in any order."""
    try:
        right = judge(spec.reference(*(x.float() for x in inputs)).to(inputs[0].dtype), reference, bound).ok
    except ValueError as error:
        return str(error)
    return "" if right else "the definition in float32 does not follow float64 here"
