"""Our figures against those of Holistic Trace Analysis on the same traces, and what docs/timeline.md says about it."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pytest
from small_traces import GRAPH, ONE_STREAM, TWO_STREAMS, UNLINKED, Event, call, event, kernel, trace, written

from opwise.timeline import hta, idle
from opwise.timeline.analysis import Timeline
from opwise.timeline.trace import read

pytestmark = pytest.mark.xdist_group("hta")  # importing it takes seconds: one worker does
pytest.importorskip("hta", reason="Holistic Trace Analysis is not installed: pip install 'opwise[timeline]'")


RECORDED = sorted((Path(__file__).parents[1] / "results" / "traces").glob("*/*.json.gz"))


def jittered() -> tuple[Event, ...]:
    """200 launches on two streams with times to the ns, queued and starved in turns, and a copy now and then; every kernel is linked."""
    rng = random.Random(7)
    cpu, free = 0.0, {7: 0.0, 9: 0.0}
    events: list[Event] = [event("cpu_op", "aten::softmax", 0, 1)]
    for i in range(1, 201):
        cpu += rng.choice([1.25, 2.5, 80.125])
        length = rng.randrange(1000, 6000) / 1000
        copy = i % 10 == 0
        events.append(call("cudaMemcpyAsync" if copy else "cudaLaunchKernel", round(cpu, 3), length, i))
        stream = rng.choice([7, 9])
        start = max(cpu + 4.5, free[stream] + rng.choice([0.875, 12.5, 45.25]))
        gpu = rng.randrange(500, 60_000) / 1000
        events.append(kernel("Memcpy DtoD (Device -> Device)" if copy else "k", round(start, 3), gpu, i, stream=stream, bytes=4096))
        free[stream], cpu = start + gpu, cpu + length
    return tuple(events)


LINKED = tuple(e for i, e in enumerate(ONE_STREAM) if i != UNLINKED)


@pytest.mark.parametrize("wait_us", [30.0, 2.0])
@pytest.mark.parametrize("events", [ONE_STREAM, TWO_STREAMS, GRAPH, jittered()], ids=["one", "two", "graph", "jittered"])
def test_holistic_trace_analysis_finds_the_same(tmp_path: Path, events: tuple[Event, ...], wait_us: float) -> None:
    path = written(tmp_path / "trace.json.gz", trace(events))
    timeline, theirs = Timeline.of(read(path), kernel_wait_us=wait_us), hta.figures(path, wait_us)
    (ours,) = timeline.devices
    near = 0.001 * len(events)  # ns, that both round
    assert theirs.span == pytest.approx(ours.breakdown.span / 1e3, abs=near)
    assert theirs.busy == pytest.approx(ours.breakdown.busy / 1e3, abs=near)
    assert theirs.idle == pytest.approx(ours.breakdown.idle / 1e3, abs=near)
    assert set(theirs.streams) == {part.stream for part in timeline.streams}
    for part in timeline.streams:
        for cause in idle.CAUSES:
            assert theirs.streams[part.stream].get(cause, 0.0) == pytest.approx(part.breakdown.waited(cause) / 1e3, abs=near), cause
    if events is not GRAPH:  # HTA links no graph's launch
        assert theirs.longest_queue == {q.stream: q.most for q in timeline.queues}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_it_finds_the_same_in_what_a_gpu_recorded(path: Path) -> None:
    timeline, theirs = Timeline.of(read(path)), hta.figures(path, 30.0)
    (ours,) = timeline.devices
    near = 0.001 * ours.breakdown.activities
    for figure in ("span", "busy", "idle"):
        assert getattr(theirs, figure) == pytest.approx(getattr(ours.breakdown, figure) / 1e3, abs=near), figure


def test_what_holistic_trace_analysis_leaves_out_and_we_add(tmp_path: Path) -> None:
    """Should a later one count these too, docs/timeline.md has to change."""
    path = written(tmp_path / "trace.json", trace(LINKED))
    found = Timeline.of(read(path))
    driver = [launch for launch in found.launches if launch.call.name.startswith("cuLaunch")]
    assert hta.figures(path, 30.0).launches == len(found.launches) - len(driver)
    assert driver
    assert hta.figures(written(tmp_path / "graph.json", trace(GRAPH)), 30.0).launches == 0


def test_a_trace_that_holistic_trace_analysis_cannot_take_is_its_reason(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(hta.HtaMissing, match=r"cannot take .*bare\.json") as caught:
            hta.figures(written(tmp_path / "bare.json", [event("kernel", "without a stream", 0, 5)]), 30.0)
    assert "\n" not in str(caught.value)


def test_holistic_trace_analysis_takes_a_bare_array_and_many_rows_of_small_ids(tmp_path: Path) -> None:
    """Of 200 rows with ids under 128 it cannot by itself: pandas 3 does not widen the column of ids."""
    events = [e for i in range(1, 101) for e in (call("cudaLaunchKernel", 10 * i, 2, i), kernel("k", 10 * i + 4.5, 3.25, i))]
    found = hta.figures(written(tmp_path / "bare.json", events), 30.0)
    assert (found.launches, found.busy) == (100, pytest.approx(325.0, abs=0.2))
