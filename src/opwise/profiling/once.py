"""`python -m opwise.profiling.once IMPLEMENTATION WORKLOAD DEVICE [FILE…]`: the process that Nsight Compute profiles; files are the user's
own.

It warms up, then launches once between the profiler's start and stop: `ncu --profile-from-start off` sees only that launch."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from opwise import own
from opwise.backends import implementation
from opwise.ops.spec import Workload
from opwise.profiling.capture import SEED

WARM_UPS = 3


def main(name: str, workload: str, device_name: str, *files: str) -> None:
    own.install(own.named([Path(file) for file in files]))
    wanted, device = Workload.parse(workload), torch.device(device_name)
    torch.cuda.set_device(device)
    with wanted.precision(), torch.no_grad():
        found = implementation(name, device)
        inputs = found.op.make_inputs(wanted, device, SEED)
        launch = found.prepare(*inputs, out=found.op.empty_output(*inputs))
        for _ in range(WARM_UPS):
            launch()
        torch.cuda.synchronize(device)
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        launch()
        torch.cuda.synchronize(device)
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(*sys.argv[1:])
