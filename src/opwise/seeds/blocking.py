"""CS336, lecture 6: CUDA_LAUNCH_BLOCKING=1 makes an error come up at the launch that made it, and not at whatever waits next.

`python -m opwise.seeds.blocking` is the faulty program: it indexes out of bounds, which a device-side assert stops, in a process of its
own, since no other work can follow on that context.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from opwise.seeds.experiment import Findings
from opwise.seeds.place import Place

BUSY_CYCLES = 400_000_000  # some 0.2 s: the faulty kernel starts long after all has been enqueued
FRAME = re.compile(r'File ".*blocking\.py", line \d+, in (\w+)')
SECONDS = 120.0


def named(place: Place) -> Findings:
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip((False, True), pool.map(_blamed, (False, True)), strict=True))
    (late, _), (named_, message) = found[False], found[True]
    return Findings(
        f"blocking: {named_}, else: {late}",
        f"with CUDA_LAUNCH_BLOCKING=1 the traceback ends in {named_}() ({message}), without it in {late}()",
        named_ == faulty.__name__ and late != faulty.__name__,
    )


def _blamed(blocking: bool) -> tuple[str, str]:
    """The function of this file that the traceback ends in, and the message. Raises RuntimeError where the program did not fail."""
    environment = {**os.environ, "CUDA_LAUNCH_BLOCKING": str(int(blocking))}
    done = subprocess.run([sys.executable, "-m", "opwise.seeds.blocking"], capture_output=True, text=True, timeout=SECONDS, check=False,
                          env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})  # fmt: skip
    frames = FRAME.findall(done.stderr)
    if not done.returncode or not frames:
        raise RuntimeError(f"the faulty program ended with {done.returncode} and no traceback of its own: {done.stderr.strip()[-200:]!r}")
    said = re.findall(r"^\w*(?:Error|Exception)\w*: (.*)$", done.stderr, re.MULTILINE)
    return frames[-1], said[-1].strip() if said else "no message"


def innocent(x: Tensor) -> Tensor:
    return x * 2


def faulty(x: Tensor, index: Tensor) -> Tensor:
    return x[index]


def wait_for_the_gpu() -> None:
    torch.cuda.synchronize()


def program() -> None:
    x = innocent(torch.arange(8.0, device="cuda"))
    index = torch.tensor([99], device="cuda")
    torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call]
    y = faulty(x, index)
    innocent(y)
    wait_for_the_gpu()


if __name__ == "__main__":
    program()
