"""The traces that an H200 recorded: every kernel has its launch, and docs/timeline.md says what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opwise.backends import BACKENDS
from opwise.timeline.analysis import Timeline
from opwise.timeline.trace import read

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT / "results" / "traces" / "nvidia-h200"
CALLS = 1000
ROW = re.compile(r"^\| (\w+) \| (.+) by (cu\w+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", re.MULTILINE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_documents_row_is_the_trace_s(backend: str) -> None:
    timeline = Timeline.of(read(TRACES / f"softmax-1024x1024-float16-{backend}.json.gz"))
    (device,) = timeline.devices
    assert device.breakdown.unlinked == 0
    assert len(timeline.launches) == device.breakdown.activities == CALLS
    rows = {row[0]: row[1:] for row in ROW.findall((ROOT / "docs" / "timeline.md").read_text(encoding="utf-8"))}
    kernel, by, *quoted = rows[backend]
    assert all(kernel in launch.activities[0].name and launch.call.name == by for launch in timeline.launches)
    waited = device.breakdown.host_wait
    measured = (device.breakdown.span, device.breakdown.busy, waited.before_call, waited.in_call, waited.after_call)
    assert [float(text) for text in quoted] == pytest.approx([ns / 1e3 / CALLS for ns in measured], abs=0.006)
