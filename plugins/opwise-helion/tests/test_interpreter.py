"""Right, in Triton's interpreter: what opwise's own smoke workloads do not reach, against the float64 reference."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import needs_helion

pytestmark = needs_helion

WORKLOADS = {
    "rows that are read twice": ("softmax/2x16387/float32:,sized", "softmax/2x16384/bfloat16:"),
    "rows, and many of them": ("softmax/70x3/float16", "softmax/1x5000/float32"),
    "two launches": ("mean/70001/float32", "mean/32768/float16:,tile4096x4", "mean/16385/bfloat16:"),
    "short sides": ("matmul/1x33x19/float32", "matmul/17x33x1/float16:", "matmul/17x1x19/tfloat32:", "matmul/16x16x16/float32:"),
    "equal sizes as arguments, then others": (
        "matmul/32x32x32/float16:sized", "matmul/33x40x70/float16:sized", "matmul/40x17x33/float16:sized",
        "softmax/16x16/float32:sized", "softmax/5x40/float32:sized",
    ),
    "transposes": ("matmul/33x40x70/float16/NT:,sized", "matmul/33x40x70/float32/TN:,sized", "matmul/33x40x70/tfloat32/TT:"),
    "several tiles": ("matmul/150x70x140/float32:,tile1,tile3", "matmul/300x64x130/float16:,tile0,tile4"),
    "tails": ("gelu/9001/float32", "square/8193/float16"),
}  # fmt: skip


@pytest.mark.parametrize("why", WORKLOADS)
def test_right_where_the_smoke_workloads_do_not_reach(why: str) -> None:
    command = [sys.executable, str(Path(__file__).with_name("checked.py")), *WORKLOADS[why]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env={**os.environ, "TRITON_INTERPRET": "1"})
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {record["workload"] for record in found} == {line.partition(":")[0] for line in WORKLOADS[why]}, done.stderr
    assert [record for record in found if not record["ok"]] == []
