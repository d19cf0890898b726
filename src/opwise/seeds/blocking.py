"""CS336, lecture 6: CUDA_LAUNCH_BLOCKING=1 raises an error at the launch that caused it, instead of at the next wait.

`python -m opwise.seeds.blocking cuda` is the faulty program: it indexes out of bounds, which triggers a device-side assert, in a separate
process, since its context is then unusable. It reports the error as JSON, so that no traceback has to be parsed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from opwise.seeds.experiment import Findings
from opwise.seeds.place import Place

BUSY_CYCLES = 400_000_000  # some 0.2 s: the faulty kernel starts long after all has been enqueued
SECONDS = 120.0


def named(place: Place) -> Findings:
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip((False, True), pool.map(partial(blamed, device=place.device.type), (False, True)), strict=True))
    (late, _), (named_, message) = found[False], found[True]
    return Findings(
        f"blocking: {named_}, else: {late}",
        f"with CUDA_LAUNCH_BLOCKING=1 the traceback ends in {named_}() ({message}), without it in {late}()",
        named_ == faulty.__name__ and late != faulty.__name__,
    )


def blamed(blocking: bool, device: str) -> tuple[str, str]:
    """The last function of this file in the traceback, and the error. Raises RuntimeError if the program did not fail."""
    environment = {**os.environ, "CUDA_LAUNCH_BLOCKING": str(int(blocking))}
    done = subprocess.run([sys.executable, "-m", "opwise.seeds.blocking", device], capture_output=True, text=True, timeout=SECONDS,
                          check=False, env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})  # fmt: skip
    try:
        told = json.loads(done.stdout.splitlines()[-1])
        return told["function"], told["error"]
    except (IndexError, ValueError) as error:
        said = done.stderr.strip()[-200:]
        raise RuntimeError(f"the faulty program ended with {done.returncode} and told of no error of its own: {said!r}") from error


def raised(run: Callable[[], object]) -> dict[str, str] | None:
    """`function`: the last one of this file that the error passed through; `error`: its type and first line. None without an error."""
    try:
        run()
    except Exception as error:
        own = [frame.name for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__]
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        return {"function": own[-1], "error": f"{type(error).__name__}: {first}"}
    return None


def innocent(x: Tensor) -> Tensor:
    return x * 2


def faulty(x: Tensor, index: Tensor) -> Tensor:
    return x[index]


def wait_for_the_gpu() -> None:
    torch.cuda.synchronize()


def program(device: str) -> None:
    x = innocent(torch.arange(8.0, device=device))
    index = torch.tensor([99], device=device)
    if device == "cuda":
        torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call]
    y = faulty(x, index)
    innocent(y)
    wait_for_the_gpu()


if __name__ == "__main__":
    found = raised(partial(program, sys.argv[1]))
    if found:
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        os._exit(1)  # a context that has faulted can hang an orderly exit
