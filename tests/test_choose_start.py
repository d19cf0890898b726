"""How long `opwise choose` takes from its start: seconds of a core that no other worker uses."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from recorded_runs import ROOT
from support import alone

MOST_S = 1.5
CHOOSE = ["-m", "opwise", "choose", "softmax", "--shape", "4096x4096", "--dtype", "float16", "--device", "nvidia-h200"]


def seconds(*arguments: str) -> float:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    begun = time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=environment, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return time.perf_counter() - begun


@alone("cores")
def test_a_choice_from_the_shipped_runs_takes_little_more_than_to_import_torch() -> None:
    """In one of three pairs: what else runs here makes either longer."""
    assert any(seconds(*CHOOSE) - seconds("-c", "import torch") <= MOST_S for _ in range(3))
