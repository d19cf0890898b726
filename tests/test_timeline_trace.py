"""A trace is read whatever its container, every kernel finds its launch, and what is no trace is refused in one line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from small_traces import ONE_STREAM, Event, call, event, kernel, parsed, trace, us, written

from opwise.timeline.container import document, write
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


WHOLE = json.dumps(trace(ONE_STREAM))


@pytest.mark.parametrize(
    ("text", "encoding", "notes"),
    [
        (WHOLE.replace('"args": {', '"args": {"warps per SM": inf, ', 1), "utf-8", 0),
        (WHOLE.replace('"args": {', '"args": {"GB/s": INF, "b": -nan(ind), ', 1), "utf-8", 0),
        (WHOLE, "utf-8-sig", 0),
        (WHOLE, "utf-16", 0),
        (WHOLE.replace('"args": {', r'"args": {"file": "torch\cuda\__init__.py", "gb": INF, "C:\users": "\\ \u00b5", ', 1), "utf-8", 1),
    ],
)
def test_what_torch_writes_that_is_no_json_is_read(tmp_path: Path, text: str, encoding: str, notes: int) -> None:
    """A ratio over nothing is `inf` or `nan`, and on Windows names have bare backslashes, or the file a mark of byte order."""
    path = tmp_path / "given.json"
    path.write_text(text, encoding=encoding)
    found = read(path)
    assert found.activities == parsed(ONE_STREAM).activities
    assert len(found.notes) == notes


def test_half_a_pair_of_utf_16_is_read_as_unknown(tmp_path: Path) -> None:
    """Which no output can hold; a pair, and a backslash before `ud800`, are what they are."""
    path = tmp_path / "given.json"
    path.write_text(r'["a\ud83d", "\uDE00b", "\ud83d\ude00", "\\ud83d", "\u00b5"]')
    assert document(path)[0] == ["a\ufffd", "\ufffdb", "\U0001f600", r"\ud83d", "\u00b5"]


def test_times_are_as_exact_as_they_are_written(tmp_path: Path) -> None:
    """Of so many digits a float keeps a quarter of a us. What is written again has them too."""
    events = tuple(kernel("k", 10.4 + 5.2 * i, 5.1, None) | {"ts": f"~1712195495505{10.4 + 5.2 * i:07.3f}~"} for i in range(3))
    path = tmp_path / "given.json"
    path.write_text(json.dumps(trace(events)).replace('"~', "").replace('~"', ""))
    write(document(path)[0], tmp_path / "again.json.gz")
    for found in (read(path), read(tmp_path / "again.json.gz")):
        assert [a.start - 1712195495505 * 10**6 for a in found.activities] == [10400, 15600, 20800]
        assert [a.ns for a in found.activities] == [5100] * 3


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
        (b'{"traceEvents": ' + b"[" * 100_000, ["nested too deeply"]),
        (b'[{"ts": ' + b"1" * 5000, ["no JSON", "digits"]),
        (b'{"name":"lib = Library("_x")"}', ["no JSON", "column 25", "with_stack"]),
        (b'{"traceEvents": []}', ["no complete event"]),
        (b'{"traceEvents": [{"ph": "M", "name": "process_name"}, 3]}', ["no complete event (ph X) among 2"]),
    ],
    ids=[
        "empty",
        "half",
        "tail cut",
        "damaged",
        "cut off",
        "CSV",
        "open array",
        "a record",
        "a number",
        "deep",
        "digits",
        "quotes",
        "no events",
        "no complete event",
    ],
)
def test_what_is_no_trace_is_refused_in_one_line_that_names_the_file(tmp_path: Path, content: bytes, needles: list[str]) -> None:
    path = tmp_path / "given.json"
    path.write_bytes(content)
    with pytest.raises(NotATrace) as caught:
        read(path)
    message = str(caught.value)
    assert message.count("\n") == 0
    assert all(needle in message for needle in ["given.json", *needles])


@pytest.mark.parametrize(
    "broken", [{"ts": None}, {"ts": "soon"}, {"dur": float("nan")}, {"dur": -1.0}, {"ts": float("inf")}, {"ts": True}, {"dur": 1e300}]
)
def test_an_event_without_a_time_is_left_out_and_counted(broken: Event) -> None:
    found = parsed((*ONE_STREAM, kernel("k", 300, 1, 9) | broken))
    assert (len(found.activities), found.skipped) == (6, 1)


def test_an_event_whose_time_cannot_be_is_left_out_and_named() -> None:
    """At 0 it would make a span of years, and as long as an overflow makes it a busy GPU. A graph's kernels may run side by side."""
    launches = [(call("cudaLaunchKernel", 300 + 10 * i, 2, 20 + i), kernel(f"k{i}", 303 + 10 * i, 5, 20 + i)) for i in range(5)]
    sound = (*ONE_STREAM, *(e for launch in launches for e in launch))
    at_zero = [e | {"ts": 0} for e in (call("cudaLaunchKernel", 0, 1, 40), kernel("zero", 0, 0, 40))]
    overlong = call("cudaLaunchKernel", 290, 2, 41), kernel("long", 295, 1e6, 41)
    found = parsed((*sound, *at_zero, *overlong, kernel("years", 400, 1e14, None)))
    assert found.activities == parsed(sound).activities
    assert [note.partition(": ")[2] for note in found.notes] == ["3 (cudaLaunchKernel, zero, years)", "1 (long of 1000000.000 us)"]
    graph = (call("cudaGraphLaunch", 0, 6, 1), *(kernel("node", 10 + i, 90 - 2 * i, 1) for i in range(6)))
    assert (len(parsed(graph).activities), parsed(graph).notes, parsed(sound).notes) == (6, (), ())


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
