"""Figures from a trace, of traces whose figures are known, and the traces that torch's profiler writes here."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import support
import torch
from simulated_queue import SimulatedQueue
from support import needs
from synthetic_trace import LAUNCHERS, Synthetic, of_backend

from opwise.backends import OURS
from opwise.measure.timing import MOST_SETS
from opwise.ops.spec import Workload
from opwise.profiling import allocations, capture, repeated, rows, stacks
from opwise.profiling import trace as reading
from opwise.profiling.capture import ALLOCATE, CALL, COLD, COMPILE, FLUSH, LAUNCH, PREFIX, WARM, WARM_UP, WRAP
from opwise.timeline.container import document

COLD_US, WARM_US = (20.0, 22.0, 21.0), (10.0, 11.0, 13.0, 10.5)


def test_every_backend_has_its_launcher() -> None:
    assert set(LAUNCHERS) == set(OURS), "a new backend needs its line in synthetic_trace.LAUNCHERS"


@pytest.mark.parametrize("silent", [False, True], ids=["recorded", "not recorded"])
@pytest.mark.parametrize("backend", OURS)
def test_kernels_of_every_backend_are_in_the_table_and_flushes_are_not(backend: str, silent: bool) -> None:
    trace = of_backend(backend, COLD_US, WARM_US, silent=silent)
    assert not reading.problems(trace)
    kernels, launches = rows.kernels(trace)
    assert [(k.name, k.heat, k.count, k.launches, k.device_us) for k in kernels] == [
        (LAUNCHERS[backend][2], "cold", 3, 3, 21.0),
        (LAUNCHERS[backend][2], "warm", 4, 4, pytest.approx(10.75)),
    ]
    assert {(k.grid, k.block, k.registers, k.shared_bytes, k.occupancy_percent) for k in kernels} == {
        ((4096, 1, 1), (256, 1, 1), 32, 1024, 75.0)
    }
    assert {k.api_us for k in kernels} == {None if silent else 3.0}
    assert [(x.heat, x.count, round(x.device_us, 3), x.low_us, x.high_us) for x in launches] == [
        ("cold", 3, 21.0, pytest.approx(20.0), pytest.approx(22.0)),
        ("warm", 4, 10.75, pytest.approx(10.0), pytest.approx(13.0)),
    ]


def test_a_launch_of_several_kernels_lasts_from_the_first_to_the_last_of_them() -> None:
    made = Synthetic()
    for _ in range(2):
        made.labelled(
            COLD,
            lambda: made.memset(1.0),
            lambda: made.kernel(LAUNCHERS["cupy_raw"], 5.0, (132, 1, 1)),
            lambda: made.kernel(LAUNCHERS["cupy_raw"], 2.0, (1, 1, 1), after=4.0),
        )
    kernels, launches = rows.kernels(made.trace())
    assert [(k.name, k.grid, k.each_launch, k.device_us) for k in kernels] == [
        ("Memset (Device)", None, 1.0, 1.0),
        ("softmax_rows_f16_8", (132, 1, 1), 1.0, 5.0),
        ("softmax_rows_f16_8", (1, 1, 1), 1.0, 2.0),
    ]
    assert [x.device_us for x in launches] == [
        pytest.approx(3.0 + 4.0 + 4.0 + 2.0)
    ]  # two launches apart, a late start, the last one's time


GOOD = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.0, "dur": 2.0, "args": {}}


@pytest.mark.parametrize(
    ("change", "said"),
    [({"ph": "?"}, "phase"), ({"name": None}, "no name"), ({"ts": None}, "no time"), ({"dur": -1.0}, "duration"), ({"pid": "gone"}, "")],
)
def test_a_broken_trace_is_told(change: dict[str, Any], said: str) -> None:
    event = GOOD | change
    if not said:
        del event["pid"]
    found = reading.problems({"traceEvents": [GOOD, event]})
    assert len(found) == 1
    assert said in found[0]
    assert "event 1" in found[0]


def frame(name: str, start: float, us: float, category: str = "python_function", tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, "ts": start, "dur": us, "args": {}}


# A call of 100 us in which f calls g twice; the label begins within the function that marks it, which ends 2 us later.
STACKED = {
    "traceEvents": [
        frame("main.py(1): main", 0.0, 200.0),
        frame("torch/autograd/profiler.py(9): __enter__", 8.0, 4.0),
        frame(PREFIX + CALL, 10.0, 100.0, "user_annotation"),
        frame("a.py(1): f", 20.0, 50.0),
        frame("a.py(5): g", 25.0, 10.0),
        frame("a.py(5): g", 40.0, 10.0),
        frame("aten::empty", 41.0, 4.0, "cpu_op"),
        frame("other.py(1): thread", 20.0, 50.0, tid=2),
        frame("after.py(1): h", 150.0, 10.0),
    ]
}


@pytest.mark.parametrize(
    ("ending", "start"), [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".html", b"<html>"), (".folded", b"opwise: call")]
)
def test_stacks_are_written_as_what_the_name_says(tmp_path: Path, ending: str, start: bytes) -> None:
    needs("matplotlib", "plotly")
    path = tmp_path / f"st{ending}"
    stacks.write(stacks.collapsed(STACKED), path, "$x$")
    written = path.read_bytes()
    assert start in written[:60]
    if ending == ".svg":
        rects = [e for e in ElementTree.fromstring(written).iter() if str(e.get("id", "")).startswith("patch_")]
        assert len(rects) >= len(stacks.tree(stacks.collapsed(STACKED))), "a bar a frame, beside the axes"
    with pytest.raises(ValueError, match=r"\.pdf"):
        stacks.write({}, tmp_path / "st.pdf", "x")


def test_stacks_are_of_the_calls_alone_and_each_holds_its_own_time() -> None:
    call = PREFIX + CALL
    found = stacks.collapsed(STACKED)
    assert found == {
        call: 50_000,
        f"{call};a.py(1): f": 30_000,
        f"{call};a.py(1): f;a.py(5): g": 16_000,
        f"{call};a.py(1): f;a.py(5): g;aten::empty": 4_000,
    }
    assert list(stacks.tree(found).items())[:2] == [(call, 100_000), (f"{call};a.py(1): f", 50_000)]


def test_allocations_are_told_by_place() -> None:
    def memory(at: float, size: int, address: int, device: int = 1) -> dict[str, Any]:
        arguments = {"Bytes": size, "Addr": address, "Device Type": device, "Device Id": 0}
        return {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 0, "tid": 1, "ts": at, "args": arguments}

    instants = [memory(5.0, 64, 1), memory(42.0, 512, 2), memory(43.0, 512, 3), memory(44.0, -512, 2), memory(60.0, 8, 4, device=0)]
    (large, small) = allocations.allocations({"traceEvents": [*STACKED["traceEvents"], *instants]})
    assert (large.place, large.operator, large.device, large.count, large.bytes, large.held) == (
        "a.py(5): g",
        "aten::empty",
        "GPU",
        2,
        512,
        1,
    )
    assert (small.place, small.operator, small.device, small.total_bytes, small.stage) == ("a.py(1): f", "", "CPU", 8, CALL)


@pytest.fixture(scope="module", params=OURS)
def captured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """A real trace of two calls of each backend, in what runs it here."""
    candidate = next(c for c in support.candidates() if c.backend == request.param and c.op in ("square",) and not c.variant)
    candidate.get()
    path = tmp_path_factory.mktemp("traces") / f"{request.param}.json.gz"
    trace = capture.capture(candidate.name, Workload("square", (257,), "float32"), support.DEVICE, calls=2, warm_ups=1, path=path)
    return candidate.name, trace, path


def test_every_backend_is_captured_in_labelled_ranges(captured: tuple[str, dict[str, Any], Path]) -> None:
    name, trace, path = captured
    assert reading.problems(trace) == []
    assert document(path) == (json.loads(json.dumps(trace), parse_float=Decimal), ())
    assert trace["opwise"]["implementation"] == name
    found = [r.label for r in reading.ranges(trace)]
    assert found[0] == COMPILE
    assert found[-8:] == [CALL, ALLOCATE, WRAP, LAUNCH] * 2
    assert found.count(WARM_UP) == 1
    stages = {row.stage: row for row in rows.stages(trace)}
    assert stages[CALL].count == stages[LAUNCH].count == 2
    assert stages[CALL].cpu_us >= max(stages[s].cpu_us for s in (ALLOCATE, WRAP, LAUNCH))
    if name == "torch_eager/square" and not support.ON_GPU:
        assert any(row.name.startswith("aten::") and row.self_us > 0 for row in rows.operators(trace))


@pytest.mark.parametrize("sets", [1, 3, MOST_SETS])
def test_cold_launches_are_flushed_or_go_round_and_warm_ups_are_apart(sets: int) -> None:
    """The order of launches and flushes as the profiler labels them, on a queue of simulated time."""
    queue = SimulatedQueue()
    order: list[str] = []
    flush = queue.flush
    queue.flush = lambda: (order.append("flush"), flush())[0]  # type: ignore[method-assign]
    launches = [lambda i=i: (order.append(str(i)), queue.enqueue(20.0, 5.0))[0] for i in range(sets)]  # type: ignore[misc]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profiler:
        repeated.repeat(queue, launches, count=6)  # type: ignore[arg-type]
    found = [r.label for r in reading.ranges(capture.exported(profiler))]
    assert found.count(COLD) == found.count(WARM) == 6
    assert found.count(WARM_UP) + 12 == sum(step != "flush" for step in order)
    assert 0 < found.count(WARM_UP) <= repeated.MOST_WARM_UPS + 6 + 3 * sets + 6
    if sets == 1:
        assert all(found[i - 1] == FLUSH for i, label in enumerate(found) if label == COLD)
    elif sets == MOST_SETS:
        last = len(order) - order[::-1].index("flush")
        assert order[last : last + 6] == list("012345"), "each set once behind a flush"
    else:
        assert FLUSH not in found
        first = found.index(COLD)
        assert found[first - sets : first] == [WARM_UP] * sets, "the first turn finds an L2 that is not the others'"
    assert order[-6:] == ["0"] * 6, "warm launches are on one set of buffers"


def test_launches_on_sets_of_buffers_follow_the_calls() -> None:
    workload = Workload("square", (257,), "float32")
    bound: list[int] = []

    def then(stages: capture.Stages) -> None:
        launches = repeated.sets_of(stages, 3)
        bound.append(len(launches))
        repeated.repeat(SimulatedQueue(), launches, count=3)  # type: ignore[arg-type]

    trace = capture.capture("torch_eager/square", workload, support.DEVICE, calls=1, warm_ups=0, then=then)
    assert bound == [3]
    found = [r.label for r in reading.ranges(trace)]
    assert found.index(CALL) < found.index(COLD)
    assert (found.count(COLD), found.count(WARM), found.count(WRAP)) == (3, 3, 1), "sets are bound without a label: they are no calls"


def test_a_workload_without_elements_is_refused() -> None:
    with pytest.raises(ValueError, match="no elements"):
        capture.capture("torch_eager/square", Workload("square", (0,), "float32"), support.DEVICE)
