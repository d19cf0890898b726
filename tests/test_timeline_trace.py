"""A trace is read whatever its container, every kernel finds its launch, and what is no trace is refused in one line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from small_traces import ONE_STREAM, Event, call, event, kernel, parsed, trace, us, written

from opwise.timeline.trace import ABOUT, NotATrace, read, within


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


def test_kineto_s_own_words_for_no_number_are_read(tmp_path: Path) -> None:
    """Which JSON does not know: a ratio over nothing is `inf` or `nan` in a file that torch wrote."""
    path = tmp_path / "given.json"
    path.write_text(json.dumps(trace(ONE_STREAM)).replace('"args": {', '"args": {"warps per SM": inf, ', 1))
    assert len(read(path).activities) == len(parsed(ONE_STREAM).activities)


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


def test_within_keeps_what_was_launched_in_the_range() -> None:
    ranges = (event("user_annotation", "ProfilerStep#1", 0, 30), event("user_annotation", "ProfilerStep#2", 40, 60))
    found = within(parsed((*ONE_STREAM, *ranges)), "Step#2")
    assert [us(a.start) for a in found.activities] == [52, 97], "the copy was launched at 110, though the kernel at 97 ended at 100"
    assert found.operators == ()
    with pytest.raises(NotATrace, match=r"Step#7.*ProfilerStep#1, ProfilerStep#2"):
        within(parsed((*ONE_STREAM, *ranges)), "Step#7")


def test_what_was_recorded_says_of_what_it_is() -> None:
    about = {"implementation": "triton_jit/softmax", "workload": "softmax/4096x4096/float16", "calls": 3}
    assert parsed(ONE_STREAM, **{ABOUT: about}).about == about
    assert parsed(ONE_STREAM, **{ABOUT: "else"}).about == {}
