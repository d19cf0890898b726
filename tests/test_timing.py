"""The clock's policy in simulated time, where the truth is known. test_timing_gpu.py has the whole clock on a GPU."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from simulated_queue import MB, Governed, GpuFault, Kernel, Remembering, SimulatedQueue

from opwise.measure.device import State
from opwise.measure.rounds import MIN_ROUNDS
from opwise.measure.timing import Clock, paired_ratio, tied


def clock_of(queue: SimulatedQueue, monitor: object = None) -> Clock:
    return Clock(torch.device("cpu"), monitor, queue)  # type: ignore[arg-type]


def test_what_is_no_gpu_is_not_timed() -> None:
    with pytest.raises(ValueError, match="given device cpu, a CUDA device is taken"):
        Clock(torch.device("cpu"))


@pytest.mark.parametrize(
    ("nbytes", "sets"),
    [(0, 128), (8192, 128), (2 * MB, 128), (4 * MB, 75), (5 * MB, 60), (100 * MB, 3), (299 * MB, 2), (300 * MB, 1), (4096 * MB, 1)],
)
def test_rotation_displaces_the_l2_or_leaves_it_to_the_flush(nbytes: int, sets: int) -> None:
    assert clock_of(SimulatedQueue()).rotation(nbytes) == sets


@pytest.mark.parametrize("cpu_us", [2.0, 20.0, 200.0])
@pytest.mark.parametrize("gpu_us", [3.0, 50.0, 3000.0])
def test_cold_time_is_the_gpus_whatever_the_launch_costs(cpu_us: float, gpu_us: float) -> None:
    queue = SimulatedQueue()
    timing = clock_of(queue).cold({"a": [Kernel(queue, gpu_us, cpu_us, warm_us=gpu_us / 2)]})["a"]
    assert timing.median_us == pytest.approx(gpu_us)
    assert (timing.method, timing.converged, timing.note) == ("events", True, "")
    assert timing.samples >= 30
    assert len(timing.rounds_us) >= MIN_ROUNDS


def test_warm_time_is_the_warm_one() -> None:
    queue = SimulatedQueue()
    kernel = Kernel(queue, 9.0, 30.0, warm_us=4.0)
    timing = clock_of(queue).warm({"a": kernel})["a"]
    assert timing.median_us == pytest.approx(4.0, rel=0.01)  # the first launch of a graph after another candidate's is cold
    assert timing.method == "graph"


def test_graph_takes_a_millisecond_of_whole_turns() -> None:
    queue = SimulatedQueue()
    kernels = [Kernel(queue, 5.0, 30.0, warm_us=1.0) for _ in range(60)]
    timing = clock_of(queue).cold({"a": kernels})["a"]
    assert timing.median_us == pytest.approx(5.0)  # each of the sixty comes back after fifty-nine others
    assert queue.captured[0] % 60 == 0
    assert queue.captured[0] * 5.0 >= 1000.0


def test_small_buffers_are_used_once_behind_a_flush() -> None:
    """Kernels whose sets fit into the L2 together: each is fast from its second launch on, unless something is flushed between."""
    queue, flushes = SimulatedQueue(), []
    flush = queue.flush
    kernels = [Remembering(queue, 3.0, 30.0, warm_us=1.0) for _ in range(clock_of(queue).rotation(8192))]

    def forgetful() -> None:
        flushes.append(queue.gpu)
        for kernel in kernels:
            kernel.seen = False
        flush()

    queue.flush = forgetful  # type: ignore[method-assign]
    timing = clock_of(queue).cold({"a": kernels})["a"]
    assert timing.median_us == pytest.approx(3.0, rel=0.01)
    assert (timing.method, timing.converged, timing.note) == ("graph", True, "")
    assert queue.captured == [len(kernels)], "one turn: in a second one the operands would be in the L2"
    assert len(flushes) > timing.samples


def test_slow_kernels_get_ten_samples_beside_fast_ones() -> None:
    queue = SimulatedQueue()
    timings = clock_of(queue).cold({"slow": [Kernel(queue, 40_000.0)], "fast": [Kernel(queue, 20.0)]})
    assert 10 <= timings["slow"].samples < 30
    assert not timings["slow"].converged
    assert timings["fast"].converged
    assert len(timings["slow"].rounds_us) == len(timings["fast"].rounds_us)


def test_unsteady_kernels_end_at_the_cap_unconverged() -> None:
    queue, rng = SimulatedQueue(), random.Random(5)
    kernel = Kernel(queue, 100.0, noise=lambda: rng.choice([0.0, 0.0, 60.0, 60.0]))
    timing = clock_of(queue).cold({"a": [kernel]}, budget_s=0.3)["a"]
    assert not timing.converged
    assert timing.low_us < timing.high_us
    assert 0.3e6 <= queue.cpu < 1e6


def test_different_numbers_of_launches_are_refused() -> None:
    queue = SimulatedQueue()
    kernel = Kernel(queue, 5.0)
    with pytest.raises(ValueError, match=r"given \[1, 2\] launches"):
        clock_of(queue).cold({"a": [kernel], "b": [kernel, kernel]})
    assert clock_of(queue).cold({}) == {}


def test_a_spin_that_is_too_short_is_made_longer() -> None:
    """Half of what was asked for: batches are repeated until the spin outlasts the enqueueing."""
    queue = SimulatedQueue(spin_scale=0.5)
    timing = clock_of(queue).cold({"a": [Kernel(queue, 5.0, 300.0)]})["a"]
    assert timing.median_us == pytest.approx(5.0)
    assert timing.note == ""


def test_without_a_backlog_the_time_is_marked() -> None:
    """The GPU waits for a launch of 300 us in every sample: the figure is wrong, and says so."""
    queue = SimulatedQueue(spin_scale=0.0)
    timing = clock_of(queue).cold({"a": [Kernel(queue, 5.0, 300.0)]})["a"]
    assert timing.median_us > 100.0
    assert "before they were enqueued" in timing.note


def test_the_proof_marks_a_backlog_that_changes_the_time() -> None:
    """Whatever the cause: a kernel that is faster the longer the spin before it cannot be trusted."""
    queue = SimulatedQueue()
    kernel = Kernel(queue, 100.0, noise=lambda: 1e6 / (queue.spins or [1e3])[-1] ** 0.9)
    timing = clock_of(queue).cold({"a": [kernel]})["a"]
    assert timing.note.startswith("starved:")
    assert not timing.converged


def test_a_hiccup_of_the_cpu_costs_one_batch_only() -> None:
    queue = SimulatedQueue()

    def hiccup(count: int) -> None:
        queue.cpu += 20_000.0 if count == 1500 else 0.0

    timing = clock_of(queue).cold({"a": [Kernel(queue, 5.0, after=hiccup)]})["a"]
    assert timing.high_us == pytest.approx(5.0)
    assert timing.note == ""


def test_every_block_has_its_turn_and_its_wait() -> None:
    queue, turns = SimulatedQueue(), []
    kernels = {name: [Kernel(queue, 30.0)] for name in "abc"}
    timings = clock_of(queue).cold(kernels, turns.append)
    assert queue.waits >= len(turns)
    rounds = len(timings["a"].rounds_us)
    last = turns[-3 * rounds :]
    assert all(sorted(last[i : i + 3]) == ["a", "b", "c"] for i in range(0, len(last), 3))


@pytest.mark.parametrize("at", [1, 2, 40, 400])
def test_an_asynchronous_fault_comes_up_in_the_right_turn(at: int) -> None:
    queue, turns = SimulatedQueue(), []

    def fail(count: int) -> None:
        if count == at:
            queue.fault = GpuFault("an illegal memory access was encountered")

    kernels = {"a": [Kernel(queue, 30.0)], "bad": [Kernel(queue, 30.0, after=fail)], "c": [Kernel(queue, 30.0)]}
    with pytest.raises(GpuFault):
        clock_of(queue).cold(kernels, turns.append)
    assert turns[-1] == "bad"


@pytest.mark.parametrize("at", [1, 3, 600])
def test_a_launch_that_raises_is_left_out(at: int) -> None:
    queue = SimulatedQueue()

    def fail(count: int) -> None:
        if count == at:
            raise ValueError("too many\nresources")

    clock = clock_of(queue)
    timings = clock.cold({"bad": [Kernel(queue, 30.0, after=fail)], "good": [Kernel(queue, 20.0)]})
    assert list(timings) == ["good"]
    assert timings["good"].median_us == pytest.approx(20.0)
    assert clock.refusals == {"bad": "no cold time: ValueError: too many"}


def test_what_cannot_be_captured_has_no_warm_time_only() -> None:
    queue = SimulatedQueue()

    def fail(count: int) -> None:
        if queue.recording is not None:
            raise RuntimeError("operation not permitted when stream is capturing")

    clock = clock_of(queue)
    kernels = {"a": Kernel(queue, 5.0, after=fail), "b": Kernel(queue, 5.0)}
    assert list(clock.warm(kernels)) == ["b"]
    assert list(clock.launch_cost(kernels)) == ["a", "b"]
    assert clock.refusals == {"a": "no warm time: RuntimeError: operation not permitted when stream is capturing"}


def test_drift_cancels_in_the_paired_ratio() -> None:
    queue = SimulatedQueue()
    queue.drift = lambda: 1.0 + queue.cpu / 2e6  # half as slow again within a second
    timings = clock_of(queue).cold({"a": [Kernel(queue, 110.0)], "b": [Kernel(queue, 100.0)]})
    ratio, low, high = paired_ratio(timings["a"], timings["b"])
    assert ratio == pytest.approx(1.1, rel=0.01)
    assert low <= ratio <= high
    assert not tied(ratio, low, high)


# -- two states of the clock --------------------------------------------------------------------------------------------------


def monitor_of(said: Callable[[], State]) -> SimpleNamespace:
    return SimpleNamespace(sample=said)


@pytest.mark.parametrize("sets", [1, 3])
def test_a_product_is_timed_at_full_clock_and_under_the_power_cap(sets: int) -> None:
    queue = Governed()
    kernels = {name: [Kernel(queue, us)] * sets for name, us in (("a", 200.0), ("b", 220.0))}
    full, capped = clock_of(queue, monitor_of(lambda: State(2000.0 * queue.share()))).both(kernels)
    assert {name: timing.median_us for name, timing in full.items()} == pytest.approx({"a": 200.0, "b": 220.0})
    assert {name: timing.median_us for name, timing in capped.items()} == pytest.approx({"a": 200.0 / 0.75, "b": 220.0 / 0.75}, rel=0.02)
    assert [t.sm_clock_mhz for t in (*full.values(), *capped.values())] == [2000.0, 2000.0, 1500.0, 1500.0]
    assert full["a"].rest_us >= 0.5 * full["a"].median_us
    assert capped["a"].rest_us == 0.0
    for times in (full, capped):
        assert paired_ratio(times["b"], times["a"])[0] == pytest.approx(1.1, rel=0.01)


def test_the_rest_grows_until_the_clock_holds() -> None:
    modest, greedy = Governed(most=0.4), Governed(most=0.1)
    rests = [clock_of(queue).cold({"a": [Kernel(queue, 200.0)] * 3})["a"].rest_us for queue in (modest, greedy)]
    assert 200.0 < rests[0] < 600.0 < 1500.0 < rests[1]


def test_what_leaves_the_clock_alone_has_one_state_and_no_rest() -> None:
    queue = Governed(most=1.0)
    full, capped = clock_of(queue, monitor_of(lambda: State(2000.0))).both({"a": [Kernel(queue, 200.0)] * 3})
    assert (full["a"].median_us, full["a"].rest_us, capped) == (pytest.approx(200.0), 0.0, {})


@pytest.mark.parametrize("state", [State(1500.0), State(2000.0, throttle=("power cap",))])
def test_no_time_at_full_clock_is_taken_under_a_lower_one(state: State) -> None:
    queue, asked = SimulatedQueue(), itertools.count()
    clock = clock_of(queue, monitor_of(lambda: State(2000.0) if next(asked) < 3 else state))
    full, capped = clock.both({"a": [Kernel(queue, 200.0)] * 3, "b": [Kernel(queue, 100.0)] * 3})
    assert full == {}
    assert [capped[name].median_us for name in "ab"] == pytest.approx([200.0, 100.0])
    assert "no cold time: ClockNotHeld: whatever rest follows a launch" in clock.refusals["a"]
    assert f"{state.sm_clock_mhz:.0f} of 2000 MHz" in clock.refusals["b"]


def test_a_round_at_a_lower_clock_is_dropped() -> None:
    """For 20 ms in the middle the kernel is slow, and the spin behind it tells."""
    queue = Governed(most=0.4)
    under_load = queue.share
    slow = [0]

    def share() -> float:
        slow[0] += (hiccup := 380_000 < queue.gpu < 400_000)
        return 0.9 if hiccup else under_load()

    queue.share = share
    timing = clock_of(queue).cold({"a": [Kernel(queue, 200.0)] * 3})["a"]
    assert slow[0] > 1
    assert (timing.median_us, timing.high_us) == pytest.approx((200.0, 200.0))
    assert max(timing.rounds_us) == pytest.approx(200.0)


def test_a_clock_that_nobody_knows_is_told_by_the_spin() -> None:
    queue = Governed()
    full, capped = clock_of(queue, monitor_of(State)).both({"a": [Kernel(queue, 200.0)] * 3})
    assert (full["a"].median_us, full["a"].sm_clock_mhz) == (pytest.approx(200.0), None)
    assert capped["a"].median_us == pytest.approx(200.0 / 0.75, rel=0.02)


def test_a_sustained_product_is_one_under_the_cap() -> None:
    queue = Governed()
    assert clock_of(queue).sustained_us(Kernel(queue, 300.0)) == pytest.approx(400.0, rel=0.02)


# -- costs on the CPU --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu_us", [1.0, 100.0, 20_000.0])
def test_launch_cost_is_the_cpus_whatever_the_kernel_takes(gpu_us: float) -> None:
    queue = SimulatedQueue()
    kernel = Kernel(queue, gpu_us, cpu_us=7.0)
    timing = clock_of(queue).launch_cost({"a": kernel, "b": Kernel(queue, 1.0, cpu_us=70.0)})
    assert timing["a"].median_us == pytest.approx(7.0)
    assert timing["b"].median_us == pytest.approx(70.0)
    assert timing["a"].method == "cpu"
    assert len(timing["a"].rounds_us) == len(timing["b"].rounds_us) >= MIN_ROUNDS


def test_burst_is_of_the_launches_after_the_first_two() -> None:
    queue = SimulatedQueue()
    assert clock_of(queue).burst_us(Kernel(queue, 50.0), 5, 0.0) == pytest.approx(50.0)
