"""`opwise block` on a GPU: what simulated time assumes of events, graphs and NVML's counter holds there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import gpu_alone
from typer.testing import CliRunner

from opwise.block.records import read_blocks
from opwise.cli import app

pytestmark = gpu_alone("events, graphs and joules are a GPU's own")

SOFTMAX = """
import torch, opwise

@opwise.kernel("softmax")
def softmax(x, out):
    torch.softmax(x, dim=-1, out=out)
"""


def test_a_block_is_timed_and_torch_in_another_file_is_torch(tmp_path: Path) -> None:
    """A candidate that is torch throughout: its block must take torch's time, and its op the same share."""
    (tmp_path / "again.py").write_text(SOFTMAX)
    arguments = ("--model", "8b", "--tokens", "1024", "--seconds", "2", "--backend", "again", "--with", str(tmp_path / "again.py"))
    result = CliRunner().invoke(app, ["block", *arguments, "--json", "--out", str(tmp_path / "results")])
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.glob("results/*/*-block-*.jsonl")
    eager, again = read_blocks(path)
    assert (eager.backend, again.backend) == ("torch_eager", "again")
    assert (eager.status, again.status) == ("ok", "ok")
    assert eager.block_us is not None
    assert again.versus_baseline is not None
    assert abs(again.versus_baseline[0] - 1) < 0.02
    for r in (eager, again):
        assert r.block_us is not None
        assert sum(r.shares.values()) == pytest.approx(1.0)
        assert 0.8 < sum(r.steps_us.values()) / r.block_us.median < 1.5, "event by event it takes little longer than in a graph"
        if r.joules is not None:
            assert r.power_w is not None
            assert 30 < r.power_w < 2000
            assert r.joules == pytest.approx(r.power_w * r.block_us.median / 1e6, rel=0.1)
        assert r.full_us is not None, r.reason
        assert r.full_us.median < 1.05 * r.block_us.median, "the clock is as high as it goes, and a flush costs little of a block"
        assert sum(r.full_steps_us.values()) == pytest.approx(r.full_us.median, rel=0.5)
    assert again.full_versus_baseline is not None
    assert abs(again.full_versus_baseline[0] - 1) < 0.02
    assert again.shares["softmax"] == pytest.approx(eager.shares["softmax"], rel=0.1)
    assert json.loads(path.read_text().splitlines()[0])["throttle"] is not None
