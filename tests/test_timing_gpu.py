"""The whole clock on a GPU: what its queue does there is what simulated time assumes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from support import gpu_alone

from opwise.measure.device import POWER_REASONS, Monitor
from opwise.measure.timing import Clock, paired_ratio, tied
from opwise.measure.watch import FULL_CLOCK

pytestmark = gpu_alone("events, graphs and the L2 are a GPU's own")


@pytest.fixture(scope="module")
def gpu() -> Clock:
    device = torch.device("cuda", 0)
    return Clock(device, Monitor(device))


def squares(n: int, sets: int) -> list[Callable[[], None]]:
    pairs = [(torch.randn(n, device="cuda"), torch.empty(n, device="cuda")) for _ in range(sets)]
    return [lambda x=x, y=y: torch.square(x, out=y) for x, y in pairs]  # type: ignore[misc]


@pytest.mark.parametrize("n", [1024, 1 << 22, 1 << 27])
def test_cold_and_warm_times_are_sane(gpu: Clock, n: int) -> None:
    launches = squares(n, gpu.rotation(8 * n))
    cold = gpu.cold({"a": launches, "b": launches})
    warm = gpu.warm({"a": launches[0]})["a"]
    ratio, low, high = paired_ratio(cold["a"], cold["b"])
    assert tied(ratio, low, high) or abs(ratio - 1) < 0.03, (ratio, low, high)  # the same launches: nothing to tell apart
    assert 0.3 < warm.median_us <= 1.05 * cold["a"].median_us
    assert not cold["a"].note.startswith("starved"), cold["a"].note


def test_a_slow_launcher_does_not_show_in_kernel_time(gpu: Clock) -> None:
    (launch,) = squares(1024, 1)

    def slow() -> None:
        end = time.perf_counter() + 100e-6
        while time.perf_counter() < end:
            pass
        launch()

    timings = gpu.cold({"quick": [launch], "slow": [slow]})
    assert timings["slow"].median_us == pytest.approx(timings["quick"].median_us, abs=1.0)
    assert gpu.launch_cost({"slow": slow})["slow"].median_us > 100.0


def test_after_a_failed_capture_everything_still_works(gpu: Clock) -> None:
    x = torch.ones(1024, device="cuda")
    stream = torch.cuda.current_stream()
    (launch,) = squares(1024, 1)
    timings = gpu.warm({"bad": lambda: x.sum().item(), "good": launch})  # type: ignore[dict-item,return-value]
    assert list(timings) == ["good"]
    assert "no warm time" in gpu.refusals.pop("bad")
    assert torch.cuda.current_stream() == stream
    assert x.sum().item() == 1024.0


def test_a_graph_replays_what_was_captured(gpu: Clock) -> None:
    total = torch.zeros((), device="cuda")
    with gpu.queue.ready():
        replay = gpu.queue.capture([lambda: total.add_(1.0)] * 10)  # type: ignore[list-item,return-value]
        replay()
        gpu.queue.wait()
    assert total.item() == 11.0  # ten of the graph, one before the capture on the side stream


def test_a_product_at_full_clock_is_at_full_clock(gpu: Clock) -> None:
    sets = [[torch.randn(4096, 4096, device="cuda").bfloat16() for _ in range(3)] for _ in range(gpu.rotation(3 * 2 * 4096**2))]
    launches = [lambda a=a, b=b, c=c: torch.mm(a, b, out=c) for a, b, c in sets]  # type: ignore[misc]
    full, capped = gpu.both({"a": launches})
    highest = gpu.watch.look().highest_mhz
    if highest is None:
        pytest.skip("the driver tells no SM clock here")
    assert (full["a"].sm_clock_mhz or 0.0) >= FULL_CLOCK * highest
    assert not set(full["a"].throttle) & set(POWER_REASONS)
    if capped:
        assert capped["a"].median_us > full["a"].median_us
        assert (capped["a"].sm_clock_mhz or 0.0) < FULL_CLOCK * highest or set(capped["a"].throttle) & set(POWER_REASONS)
