"""The timeline's figures, against traces that can be worked out on paper, and against Holistic Trace Analysis of the same traces."""

from __future__ import annotations

import gzip
import json
import random
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from small_traces import BASE_US, GRAPH, ONE_STREAM, TWO_STREAMS, UNLINKED, Event, call, event, kernel, trace, written

from opwise.timeline import hta, idle
from opwise.timeline.analysis import Timeline, as_data
from opwise.timeline.copies import copies
from opwise.timeline.difference import difference
from opwise.timeline.idle import HOST, KERNEL, OTHER, HostWait, breakdown, union
from opwise.timeline.operators import operators
from opwise.timeline.queues import FULL, queues
from opwise.timeline.trace import ABOUT, NotATrace, Trace, parse, read, short, within

WAIT_NS = round(idle.KERNEL_WAIT_US * 1e3)


def parsed(events: tuple[Event, ...], **more: object) -> Trace:
    return parse("small.json", trace(events, **more))


def us(ns: int) -> int:
    whole, rest = divmod(ns - round(BASE_US * 1000), 1000)
    assert rest == 0
    return whole


# -- reading -----------------------------------------------------------------------------------------------------------------


def test_every_kernel_finds_its_launch_by_runtime_or_driver() -> None:
    found = parsed(ONE_STREAM)
    assert [(a.name[:8], a.launch.name if a.launch else None) for a in found.activities] == [
        ("void sof", "cudaLaunchKernel"), ("softmax_", "cuLaunchKernelEx"), ("square", "cuLaunchKernel"), ("void sof", "cudaLaunchKernel"),
        ("Memcpy D", "cudaMemcpyAsync"), ("unknown", None)]  # fmt: skip
    assert [(us(a.start), us(a.end)) for a in found.activities] == [(20, 30), (31, 41), (52, 57), (97, 100), (230, 240), (245, 247)]
    assert [a.name for a in found.unlinked] == ["unknown"]
    assert found.devices == {"0": "NVIDIA H200", "1": "NVIDIA H200"}
    assert {(a.device, a.stream) for a in found.activities} == {("0", "7")}


def test_of_two_calls_with_one_correlation_id_the_outer_launched() -> None:
    found = parsed((call("cuLaunchKernel", 2, 1, 5), call("cudaLaunchKernel", 1, 4, 5), kernel("k", 10, 1, 5)))
    assert [a.launch.name for a in found.activities if a.launch] == ["cudaLaunchKernel"]


def test_correlation_0_links_nothing() -> None:
    """It is what CUPTI writes where it has none, and many events may hold it."""
    assert len(parsed((call("cudaLaunchKernel", 1, 1, 0), kernel("k", 5, 1, 0))).unlinked) == 1


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_any_container_is_read_and_holds_the_same(tmp_path: Path, ending: str) -> None:
    whole = read(written(tmp_path / f"a{ending}", trace(ONE_STREAM)))
    bare = read(written(tmp_path / f"b{ending}", list(ONE_STREAM)))
    assert whole.activities == bare.activities
    misnamed = tmp_path / "c.json"
    misnamed.write_bytes(gzip.compress(json.dumps(trace(ONE_STREAM)).encode()))
    assert read(misnamed).activities == whole.activities


def test_an_array_may_lack_its_end_as_chrome_allows(tmp_path: Path) -> None:
    path = tmp_path / "open.json"
    path.write_text(json.dumps(list(ONE_STREAM))[:-1] + ",\n")
    assert len(read(path).activities) == 6


def test_names_may_hold_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(trace(ONE_STREAM)).replace("square", "squ\tare"))
    assert "squ\tare" in {a.name for a in read(path).activities}


GZIPPED = gzip.compress(json.dumps(trace(ONE_STREAM)).encode(), mtime=0)


@pytest.mark.parametrize(
    ("content", "needles"),
    [
        (b"", ["empty", "Chrome trace"]),
        (GZIPPED[: len(GZIPPED) // 2], ["torn gzip", "again"]),
        (GZIPPED[:-4], ["torn gzip"]),
        (GZIPPED[:20] + b"\xff\xff\xff\xff" + GZIPPED[24:], ["damaged gzip"]),
        (b'{"traceEvents": [{"ph": "X", ', ["no JSON", "line 1", "export_chrome_trace"]),
        (b"op,us\nsoftmax,3\n", ["no JSON"]),
        (b"[1, 2", ["no complete event"]),
        (b'{"schema": 1, "op": "softmax"}', ["no list `traceEvents`", "schema, op"]),
        (b"3", ["int", "no list `traceEvents`"]),
        (b'{"traceEvents": []}', ["no complete event"]),
        (b'{"traceEvents": [{"ph": "M", "name": "process_name"}, 3]}', ["no complete event (ph X) among 2"]),
    ],
    ids=["empty", "half", "tail cut", "damaged", "cut off", "CSV", "open array", "a record", "a number", "no events", "no complete event"],
)
def test_what_is_no_trace_is_refused_in_one_line_that_names_the_file(tmp_path: Path, content: bytes, needles: list[str]) -> None:
    path = tmp_path / "given.json"
    path.write_bytes(content)
    with pytest.raises(NotATrace) as caught:
        read(path)
    message = str(caught.value)
    assert message.count("\n") == 0
    assert all(needle in message for needle in ["given.json", *needles])


@pytest.mark.parametrize("broken", [{"ts": None}, {"ts": "soon"}, {"dur": float("nan")}, {"dur": -1.0}, {"ts": float("inf")}])
def test_an_event_without_a_time_is_left_out_and_counted(broken: Event) -> None:
    found = parsed((*ONE_STREAM, kernel("k", 300, 1, 9) | broken))
    assert (len(found.activities), found.skipped) == (6, 1)


def test_arguments_of_odd_types_break_nothing() -> None:
    odd = [kernel("k", 300, 1, None) | {"args": given} for given in (None, 3, {"correlation": [1]}, {"correlation": {}, "bytes": "many"})]
    assert len(parsed((*ONE_STREAM, *odd)).unlinked) == 5


def test_within_keeps_what_was_launched_in_the_range() -> None:
    ranges = (event("user_annotation", "ProfilerStep#1", 0, 30), event("user_annotation", "ProfilerStep#2", 40, 60))
    found = within(parsed((*ONE_STREAM, *ranges)), "Step#2")
    assert [us(a.start) for a in found.activities] == [52, 97], "the copy was launched at 110, though the kernel at 97 ended at 100"
    assert found.operators == ()
    with pytest.raises(NotATrace, match=r"Step#7.*ProfilerStep#1, ProfilerStep#2"):
        within(parsed((*ONE_STREAM, *ranges)), "Step#7")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void at::native::reduce_kernel<512, 1, at::ReduceOp<float> >(at::ReduceOp<float>)", "at::native::reduce_kernel"),
        ("void (anonymous namespace)::softmax<float>(float*)", "softmax"),
        ("softmax_kernel", "softmax_kernel"),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH (Device -> Pinned)"),
    ],
)
def test_short_names(name: str, expected: str) -> None:
    assert short(name) == expected


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


def test_a_launch_in_the_very_ns_of_the_end_is_no_host_wait() -> None:
    events = (call("cudaLaunchKernel", 0, 1, 1), kernel("a", 5, 5, 1), call("cudaLaunchKernel", 10, 1, 2), kernel("b", 12, 1, 2))
    assert [gap.cause for gap in breakdown(parsed(events).activities, WAIT_NS).gaps] == [KERNEL]


def test_streams_of_one_gpu_overlap_into_one_busy_time() -> None:
    timeline = Timeline.of(parsed(TWO_STREAMS))
    (whole,) = timeline.devices
    assert (whole.breakdown.span, whole.breakdown.busy, whole.breakdown.waited(HOST)) == (50_000, 40_000, 10_000)
    assert (whole.breakdown.kernels, whole.breakdown.copies) == (30_000, 15_000)
    by_stream = {part.stream: (part.breakdown.span, part.breakdown.busy, part.breakdown.idle) for part in timeline.streams}
    assert by_stream == {"7": (40_000, 20_000, 20_000), "9": (45_000, 30_000, 15_000)}


def test_two_gpus_are_told_apart() -> None:
    timeline = Timeline.of(parsed((kernel("a", 0, 10, 1), kernel("b", 5, 10, 2, device=1), kernel("c", 30, 5, 3, device=1))))
    assert [(p.device, p.breakdown.span, p.breakdown.busy) for p in timeline.devices] == [("0", 10_000, 10_000), ("1", 30_000, 15_000)]


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


def test_a_full_queue_is_seen_for_as_long_as_it_is_full() -> None:
    events = [call("cudaLaunchKernel", i, 0.5, i + 1) for i in range(FULL)]
    events += [kernel("k", 2 * FULL + i, 0.5, i + 1) for i in range(FULL)]
    (queue,) = queues(parsed(tuple(events)).activities)
    assert queue.most == FULL
    assert queue.full == pytest.approx((2 * FULL - (FULL - 1)) / (3 * FULL - 1))


def test_a_queue_never_falls_below_0_where_the_clocks_disagree() -> None:
    (queue,) = queues(parsed((call("cudaLaunchKernel", 10, 2, 1), kernel("k", 9.5, 5, 1))).activities)
    assert (queue.most, [n for _, n in queue.steps]) == (0, [0])


def test_copies_have_their_bandwidth_and_the_time_that_no_kernel_hid() -> None:
    (copy,) = copies(parsed(TWO_STREAMS).activities)
    assert (copy.kind, copy.count, copy.bytes, copy.us, copy.gb_per_s) == ("Memcpy HtoD (Pinned -> Device)", 1, 750_000, 15.0, 50.0)
    assert copy.alone_us == 10.0


def test_the_rate_is_the_one_that_the_trace_states() -> None:
    (copy,) = copies(parsed(ONE_STREAM).activities)
    (stated,) = (e["args"]["memory bandwidth (GB/s)"] for e in ONE_STREAM if e.get("cat") == "gpu_memcpy")
    assert copy.gb_per_s == stated


def test_copies_without_bytes_have_no_rate() -> None:
    (fill,) = copies(parsed((kernel("Memset (Device)", 0, 2, None),)).activities)
    assert (fill.bytes, fill.gb_per_s, fill.us, fill.alone_us) == (None, None, 2.0, 2.0)


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


def test_the_difference_names_kernels_that_only_one_has() -> None:
    found = difference(Timeline.of(parsed(ONE_STREAM)), Timeline.of(parsed(GRAPH)))
    kernels = {k.name: (k.a_count, k.b_count, k.a_us, k.b_us) for k in found.kernels}
    assert kernels["node"] == (0, 3, 0.0, 9.0)
    assert kernels["softmax"] == (2, 0, 13.0, 0.0)


@pytest.mark.parametrize("events", [ONE_STREAM, TWO_STREAMS, GRAPH, ONE_STREAM[1:3]], ids=["one", "two", "graph", "CPU"])
def test_data_is_plain_json_whose_parts_add_up(events: tuple[Event, ...]) -> None:
    data = json.loads(json.dumps(as_data(Timeline.of(parsed(events))), allow_nan=False))
    for part in (*data["devices"], *data["streams"]):
        assert part["idle_us"] == pytest.approx(part["host_wait_us"] + part["kernel_wait_us"] + part["other_us"])
        assert part["span_us"] == pytest.approx(part["busy_us"] + part["idle_us"])
    assert sum(row["count"] for row in data["kernels"]) == (data["launches"] or {"count": 0})["count"]


# -- Holistic Trace Analysis -------------------------------------------------------------------------------------------------


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


@pytest.mark.xdist_group("hta")
@pytest.mark.parametrize("wait_us", [30.0, 2.0])
@pytest.mark.parametrize("events", [ONE_STREAM, TWO_STREAMS, GRAPH, jittered()], ids=["one", "two", "graph", "jittered"])
def test_holistic_trace_analysis_finds_the_same(tmp_path: Path, events: tuple[Event, ...], wait_us: float) -> None:
    pytest.importorskip("hta", reason="Holistic Trace Analysis is not installed: pip install 'opwise[timeline]'")
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


@pytest.mark.xdist_group("hta")
def test_what_holistic_trace_analysis_leaves_out_and_we_add(tmp_path: Path) -> None:
    """Should a later one count these too, docs/timeline.md has to change."""
    pytest.importorskip("hta", reason="Holistic Trace Analysis is not installed: pip install 'opwise[timeline]'")
    path = written(tmp_path / "trace.json", trace(LINKED))
    found = Timeline.of(read(path))
    driver = [launch for launch in found.launches if launch.call.name.startswith("cuLaunch")]
    assert hta.figures(path, 30.0).launches == len(found.launches) - len(driver)
    assert driver
    assert hta.figures(written(tmp_path / "graph.json", trace(GRAPH)), 30.0).launches == 0


@pytest.mark.xdist_group("hta")
def test_a_trace_that_holistic_trace_analysis_cannot_take_is_its_reason(tmp_path: Path) -> None:
    pytest.importorskip("hta", reason="Holistic Trace Analysis is not installed: pip install 'opwise[timeline]'")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(hta.HtaMissing, match=r"cannot take .*bare\.json") as caught:
            hta.figures(written(tmp_path / "bare.json", [event("kernel", "without a stream", 0, 5)]), 30.0)
    assert "\n" not in str(caught.value)


@pytest.mark.xdist_group("hta")
def test_holistic_trace_analysis_takes_a_bare_array_and_many_rows_of_small_ids(tmp_path: Path) -> None:
    """Of 200 rows with ids under 128 it cannot by itself: pandas 3 does not widen the column of ids."""
    pytest.importorskip("hta", reason="Holistic Trace Analysis is not installed: pip install 'opwise[timeline]'")
    events = [e for i in range(1, 101) for e in (call("cudaLaunchKernel", 10 * i, 2, i), kernel("k", 10 * i + 4.5, 3.25, i))]
    found = hta.figures(written(tmp_path / "bare.json", events), 30.0)
    assert (found.launches, found.busy) == (100, pytest.approx(325.0, abs=0.2))


def test_what_was_recorded_says_of_what_it_is() -> None:
    about = {"implementation": "triton_jit/softmax", "workload": "softmax/4096x4096/float16", "calls": 3}
    assert parsed(ONE_STREAM, **{ABOUT: about}).about == about
    assert parsed(ONE_STREAM, **{ABOUT: "else"}).about == {}
