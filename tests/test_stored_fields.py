"""Whatever a field of a trace, a record or a recording holds: it is refused by name or left out, and what is taken can be written as JSON
again.

OPWISE_FUZZ=2000 tries so many examples of each, at random."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from recorded_runs import cell, store_of
from reporting import CELL
from small_traces import GRAPH, ONE_STREAM, trace

from opwise.commands.choose_recorded import show
from opwise.fields import WrongField
from opwise.program.advice import advice
from opwise.program.calls import BadRecording, Recording
from opwise.record import Record, UnknownSchema
from opwise.timeline.analysis import Timeline, as_data
from opwise.timeline.container import NotATrace
from opwise.timeline.trace import parse

ASKED = os.environ.get("OPWISE_FUZZ")
tried = hypothesis.settings(max_examples=int(ASKED or 100), derandomize=not ASKED, deadline=None, database=None)
ODD = [0, -1, True, 1e308, -1e308, float("nan"), float("inf"), 2**64, 10**400, "", "nan", "1", "\ud800", "[/]", {}, [], [[]], None]
VALUES = st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=4) | st.lists(st.sampled_from(ODD), max_size=3)
Place = tuple[str | int, ...]


def places(document: Any, at: Place = ()) -> Iterator[Place]:
    parts = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    for name, part in parts:
        yield (*at, name)
        yield from places(part, (*at, name))


def changed(text: str, place: Place, value: Any, missing: bool) -> Any:
    document = json.loads(text)
    within = document
    for name in place[:-1]:
        within = within[name]
    if missing:
        del within[place[-1]]
    else:
        within[place[-1]] = value
    return document


TRACES = [(text, place) for events in (ONE_STREAM, GRAPH) for text in [json.dumps(trace(events))] for place in places(json.loads(text))]
RECORDS = [(text, place) for text in [CELL.to_json()] for place in places(json.loads(text))]


@tried
@hypothesis.given(st.sampled_from(TRACES), VALUES, st.booleans())
def test_a_trace_with_any_field_is_read_or_refused(where: tuple[str, Place], value: Any, missing: bool) -> None:
    try:
        found = parse("given.json", changed(*where, value, missing))
    except NotATrace:
        return
    data = as_data(Timeline.of(found, "given"))
    json.dumps(data, allow_nan=False)
    assert all(0 <= part["busy_us"] <= part["span_us"] for part in data["devices"])


@tried
@hypothesis.given(st.sampled_from(RECORDS), VALUES, st.booleans(), st.sampled_from([1, 2]))
def test_a_record_with_any_field_is_read_or_refused(where: tuple[str, Place], value: Any, missing: bool, schema: int) -> None:
    try:
        stated = {} if where[1] == ("schema",) else {"schema": schema}
        found = Record.from_data(changed(*where, value, missing) | stated)
    except (WrongField, UnknownSchema):
        return
    assert found.workload.op == found.op
    json.loads(found.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


PRODUCT = {"op": "matmul", "function": "aten.mm", "near": "", "shape": [7, 33, 5], "dtype": "float32", "strides": [[33, 1], [1, 33]],
           "contiguous": False, "aligned": True, "device": "cuda", "gradient": "", "compiled": False, "calls": 9}  # fmt: skip
SOFTMAX = PRODUCT | {"op": "softmax", "function": "aten._softmax", "shape": [7, 33], "strides": [[33, 1]], "contiguous": True}
RECORDING = {"schema": 1, "command": ["app.py"], "seconds": 2.0, "dispatched": 20, "device": "NVIDIA H200", "versions": {"torch": "2.11.0"},
             "calls": [PRODUCT, SOFTMAX, SOFTMAX | {"near": "backward of softmax"}]}  # fmt: skip
RECORDINGS = [(text, place) for text in [json.dumps(RECORDING)] for place in places(RECORDING)]
STORE = store_of(*(cell(b, us, shape=(7, 33), dtype="float32") for b, us in (("cupy_raw", 50.0), ("torch_eager", 90.0))))


@tried
@hypothesis.given(st.sampled_from(RECORDINGS), VALUES, st.booleans())
def test_a_recording_with_any_field_is_advised_on_or_refused(
    tmp_path_factory: pytest.TempPathFactory, where: tuple[str, Place], value: Any, missing: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "recording.json"
    path.write_text(json.dumps(changed(*where, value, missing)), encoding="utf-8")
    try:
        recording = Recording.read(path)
    except BadRecording:
        return
    found = advice(recording, STORE, "nvidia-toy")
    assert sum(line.calls for line in found.lines) == sum(call.calls for call in recording.calls)
    assert found.saved_s >= 0
    show(found, recording)
    recording.write(path)
    assert Recording.read(path) == recording
