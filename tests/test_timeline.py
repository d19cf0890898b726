"""The timeline's figures, against traces that can be worked out on paper."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from small_traces import GRAPH, ONE_STREAM, TWO_STREAMS, Event, call, kernel, parsed, us

from opwise.timeline import idle
from opwise.timeline.analysis import Timeline, as_data
from opwise.timeline.copies import copies
from opwise.timeline.difference import difference
from opwise.timeline.idle import HOST, KERNEL, OTHER, HostWait, breakdown, union
from opwise.timeline.operators import operators
from opwise.timeline.queues import queues

WAIT_NS = round(idle.KERNEL_WAIT_US * 1e3)

# -- busy and idle -----------------------------------------------------------------------------------------------------------


def test_busy_and_idle_of_one_stream_are_those_worked_out() -> None:
    found = breakdown(parsed(ONE_STREAM).activities, WAIT_NS)
    assert (found.span, found.busy, found.idle) == (227_000, 40_000, 187_000)
    assert (found.kernels, found.copies, found.activities, found.unlinked) == (30_000, 10_000, 6, 1)
    assert [(gap.ns, gap.cause) for gap in found.gaps] == [
        (1_000, KERNEL), (11_000, HOST), (40_000, OTHER), (130_000, HOST), (5_000, KERNEL)]  # fmt: skip
    assert {cause: found.waited(cause) for cause in idle.CAUSES} == {HOST: 141_000, KERNEL: 6_000, OTHER: 40_000}
    assert found.host_wait == HostWait(before_call=15_000, in_call=4_000, after_call=122_000)


@pytest.mark.parametrize(("wait_us", "kernel_us", "other_us"), [(0, 0, 46), (1, 0, 46), (1.001, 1, 45), (40, 6, 40), (40.001, 46, 0)])
def test_the_threshold_parts_kernel_wait_from_other_and_leaves_host_wait(wait_us: float, kernel_us: int, other_us: int) -> None:
    found = breakdown(parsed(ONE_STREAM).activities, round(wait_us * 1e3))
    assert (found.waited(HOST), found.waited(KERNEL), found.waited(OTHER)) == (141_000, kernel_us * 1000, other_us * 1000)


def test_streams_of_one_gpu_overlap_into_one_busy_time() -> None:
    timeline = Timeline.of(parsed(TWO_STREAMS))
    (whole,) = timeline.devices
    assert (whole.breakdown.span, whole.breakdown.busy, whole.breakdown.waited(HOST)) == (50_000, 40_000, 10_000)
    assert (whole.breakdown.kernels, whole.breakdown.copies) == (30_000, 15_000)
    by_stream = {part.stream: (part.breakdown.span, part.breakdown.busy, part.breakdown.idle) for part in timeline.streams}
    assert by_stream == {"7": (40_000, 20_000, 20_000), "9": (45_000, 30_000, 15_000)}


def test_a_long_kernel_hides_shorter_ones_and_touching_ones_leave_no_gap() -> None:
    found = parsed((kernel("long", 0, 100, None), kernel("in", 10, 5, None), kernel("touching", 100, 5, None)))
    assert breakdown(found.activities, WAIT_NS).gaps == ()
    assert union(found.activities) == 105_000


def test_random_traces_add_up() -> None:
    """Against a count of every us on its own."""
    for seed in range(30):
        rng = random.Random(seed)
        events: list[Event] = []
        for i in range(1, 40):
            start = rng.randrange(300)
            if rng.random() < 0.8:
                events.append(call("cudaLaunchKernel", max(0, start - rng.randrange(1, 40)), 2, i))
            events.append(kernel(rng.choice(["k", "Memcpy HtoD"]), start, rng.randrange(0, 12), i, stream=rng.choice([7, 9])))
        found = breakdown(parsed(tuple(events)).activities, 8_000)
        spans = [(us(a.start), us(a.end)) for a in parsed(tuple(events)).activities]
        ran = {t for start, end in spans for t in range(start, end)}
        assert found.busy == 1000 * len(ran)
        assert found.span == 1000 * (max(end for _, end in spans) - min(start for start, _ in spans))
        assert found.idle == sum(gap.ns for gap in found.gaps) == sum(found.waited(cause) for cause in idle.CAUSES)
        host = found.host_wait
        assert host.before_call + host.in_call + host.after_call == found.waited(HOST)
        assert all(first.end <= second.start for first, second in pairwise(found.gaps))


def test_no_activity_has_no_breakdown() -> None:
    with pytest.raises(ValueError, match="no activities"):
        breakdown([], WAIT_NS)


# -- launches, queues, copies, operators -------------------------------------------------------------------------------------


def test_launch_statistics_are_those_worked_out() -> None:
    timeline = Timeline.of(parsed(ONE_STREAM))
    rows = [(x.call.name, x.cpu, x.gpu, x.delay) for x in timeline.launches]
    assert rows == [("cudaLaunchKernel", 4_000, 10_000, 6_000), ("cuLaunchKernelEx", 2_000, 10_000, 14_000),
                    ("cuLaunchKernel", 3_000, 5_000, 3_000), ("cudaLaunchKernel", 60_000, 3_000, 0),
                    ("cudaMemcpyAsync", 1_000, 10_000, 119_000)]  # fmt: skip
    every = timeline.all_launches
    assert every is not None
    assert (every.count, every.cpu.median, every.cpu.most, every.gpu.total, every.delay.median) == (5, 3.0, 60.0, 38.0, 6.0)
    assert (every.short_kernels, every.runtime_outliers, every.delay_outliers) == (0, 1, 1)
    assert [(row.kernel, row.by, row.count) for row in timeline.by_kernel] == [
        ("softmax", "cudaLaunchKernel", 2), ("softmax_kernel", "cuLaunchKernelEx", 1), ("Memcpy DtoH (Device -> Pinned)",
         "cudaMemcpyAsync", 1), ("square", "cuLaunchKernel", 1)]  # fmt: skip


def test_a_kernel_shorter_than_its_launch_is_short_and_one_behind_an_outlier_is_not() -> None:
    events = (call("cudaLaunchKernel", 0, 4, 1), kernel("k", 5, 3.999, 1), call("cudaLaunchKernel", 10, 4, 2), kernel("k", 15, 4, 2),
              call("cudaLaunchKernel", 30, 51, 3), kernel("k", 90, 1, 3))  # fmt: skip
    every = Timeline.of(parsed(events)).all_launches
    assert every is not None
    assert (every.short_kernels, every.runtime_outliers) == (1, 1)


def test_a_graph_is_one_launch_of_several_kernels() -> None:
    timeline = Timeline.of(parsed(GRAPH))
    (launch,) = timeline.launches
    assert (launch.kernel, launch.cpu, launch.gpu, launch.delay) == ("node and 2 more", 6_000, 9_000, 4_000)
    (whole,) = timeline.devices
    assert (whole.breakdown.busy, whole.breakdown.waited(KERNEL)) == (9_000, 1_000)
    assert timeline.queues[0].most == 3


def test_the_queue_is_the_one_worked_out() -> None:
    (queue,) = queues(parsed(ONE_STREAM).activities)
    assert [(us(at), n) for at, n in queue.steps] == [
        (10, 1), (15, 2), (20, 1), (31, 0), (46, 1), (50, 2), (52, 1), (97, 0), (110, 1), (230, 0)]  # fmt: skip
    assert (queue.most, queue.full) == (2, 0.0)
    assert queue.mean == pytest.approx((5 + 10 + 11 + 4 + 4 + 45 + 120) / 220)
    assert queue.empty == pytest.approx((15 + 13) / 220)


def test_copies_have_their_bandwidth_and_the_time_that_no_kernel_hid() -> None:
    (copy,) = copies(parsed(TWO_STREAMS).activities)
    assert (copy.kind, copy.count, copy.bytes, copy.us, copy.gb_per_s) == ("Memcpy HtoD (Pinned -> Device)", 1, 750_000, 15.0, 50.0)
    assert copy.alone_us == 10.0


def test_own_time_of_operators_leaves_out_those_they_called() -> None:
    rows = {row.name: (row.count, row.us, row.own_us) for row in operators(parsed(ONE_STREAM).operators)}
    assert rows == {"aten::softmax": (1, 10.0, 4.0), "aten::_softmax": (1, 6.0, 6.0)}


# -- the difference, and data ------------------------------------------------------------------------------------------------


def test_the_difference_is_of_one_call_where_both_are_counted() -> None:
    a, b = Timeline.of(parsed(ONE_STREAM), "A", calls=4), Timeline.of(parsed(TWO_STREAMS), "B", calls=2)
    found = difference(a, b)
    rows = {row.what: (row.a, row.b) for row in found.rows}
    assert found.per_call
    assert rows["span"] == (227 / 4, 25.0)
    assert rows["host wait"] == (141 / 4, 5.0)
    assert rows["launches"] == (5 / 4, 2.0)
    assert rows["delay to the start, median"] == (6.0, 7.5), "a median is of one launch, however many calls"
    assert next(row for row in found.rows if row.what == "busy / span").ratio == pytest.approx(0.8 / (40 / 227))
    uncounted = difference(a, replace(b, calls=0))
    assert not uncounted.per_call
    assert {row.what: row.a for row in uncounted.rows}["span"] == 227.0


@pytest.mark.parametrize("events", [ONE_STREAM, TWO_STREAMS, GRAPH, ONE_STREAM[1:3]], ids=["one", "two", "graph", "CPU"])
def test_data_is_plain_json_whose_parts_add_up(events: tuple[Event, ...]) -> None:
    data = json.loads(json.dumps(as_data(Timeline.of(parsed(events))), allow_nan=False))
    for part in (*data["devices"], *data["streams"]):
        assert part["idle_us"] == pytest.approx(part["host_wait_us"] + part["kernel_wait_us"] + part["other_us"])
        assert part["span_us"] == pytest.approx(part["busy_us"] + part["idle_us"])
    assert sum(row["count"] for row in data["kernels"]) == (data["launches"] or {"count": 0})["count"]
