"""Scratch is lent again without being zeroed again, and never to two launches that may run at once.

The rules are tested on a simulated torch, whose streams are numbers; tests/test_on_gpu.py tests what follows from them on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from opwise.backends import scratch
from opwise.backends.scratch import KEPT, Memory, launched_with, lender

GPU = torch.device("cuda", 0)


@dataclass
class Streams:
    """What scratch.py asks of torch.cuda: the current stream of device 0, is it under capture, and one stream's waiting for another."""

    current: int = 7
    capturing: bool = False
    zeroed: int = 0
    happened: list[Any] = field(default_factory=list)

    def made(self, size: int, device: torch.device, index: int, home: int, shelf: list[Memory] | None, zeroed: int) -> Memory:
        self.zeroed += 1
        tensor = torch.zeros(size // 4)
        tensor.record_stream = lambda stream: self.happened.append(("kept for", stream.raw))  # type: ignore[method-assign]
        return Memory(tensor, tensor.data_ptr(), index, home, shelf, zeroed)


@dataclass
class Stream:
    raw: int
    owner: Streams

    def wait_stream(self, other: Stream) -> None:
        self.owner.happened.append((self.raw, "waits for", other.raw))


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    made = Streams()
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: made.current, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: Stream(made.current, made))
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda raw, device: Stream(raw, made))
    monkeypatch.setattr(scratch, "_capturing", lambda: made.capturing)
    monkeypatch.setattr(scratch, "_made", made.made)
    scratch._shelves.clear()
    return made


def used_once(act: Callable[[scratch.Scratch], None] = lambda taken: launched_with(taken, lambda: None)()) -> int:
    """The address of the scratch of a binding that is dead."""
    taken = lender(100, GPU)()
    act(taken)
    return taken.memory.address


def test_kernels_that_leave_different_bytes_zero_share_no_shelf(streams: Streams) -> None:
    """One that leaves 16 bytes 0 must not lend what another needs 0 from end to end."""
    few = lender(2000, GPU)().memory.address
    assert lender(2000, GPU, zeroed=1040)().memory.address != few
    assert lender(2000, GPU)().memory.address == few


def test_what_launches_of_one_name_leave_is_lent_to_that_name_alone(streams: Streams) -> None:
    """Numbers of launches, say: who counts on zeros must not find them, nor who laid them elsewhere."""
    named = lender(2000, GPU, 1040, "stream 64 2")().memory.address
    assert lender(2000, GPU, 1040)().memory.address != named
    assert lender(2000, GPU, 1040, "stream 32 4")().memory.address != named
    assert lender(2000, GPU, 1040, "stream 64 2")().memory.address == named


def test_a_dead_bindings_scratch_is_lent_again_on_its_stream_alone(streams: Streams) -> None:
    first = used_once()
    assert used_once() == first
    assert used_once(lambda taken: None) == first
    assert streams.zeroed == 1
    streams.current = 8
    assert used_once() != first
    assert streams.zeroed == 2
    assert not streams.happened, "on its own stream a launch waits for nothing"


def test_bindings_alive_at_once_have_scratch_of_their_own(streams: Streams) -> None:
    alive = [lender(100, GPU)() for _ in range(KEPT + 3)]
    assert len({one.memory.address for one in alive}) == KEPT + 3
    alive.clear()
    again = [lender(100, GPU)() for _ in range(KEPT + 3)]
    assert len({one.memory.address for one in again}) == KEPT + 3
    assert streams.zeroed == KEPT + 3 + 3, "a shelf keeps a few, the rest is torch's again"


def test_a_launch_on_another_stream_is_ordered_once_and_ends_the_lending(streams: Streams) -> None:
    ran: list[int] = []
    taken = lender(100, GPU)()
    launch = launched_with(taken, lambda: ran.append(streams.current))
    launch()
    streams.current = 9
    launch()
    launch()
    streams.current = 7
    launch()
    assert ran == [7, 9, 9, 7]
    assert streams.happened == [(9, "waits for", 7), ("kept for", 9)]
    held = taken.memory  # so that no other scratch can lie at its address by chance
    del taken, launch
    assert used_once() != held.address, "it may still be in use on the other stream"


def test_what_a_graph_may_replay_is_not_lent_again(streams: Streams) -> None:
    def captured(taken: scratch.Scratch) -> None:
        kept.append(taken.memory)
        streams.capturing = True
        launched_with(taken, lambda: None)()
        streams.capturing = False

    kept: list[Memory] = []
    first = used_once(captured)
    assert used_once(captured) != first
    streams.capturing = True
    within = used_once(lambda taken: kept.append(taken.memory))
    assert used_once() != within, "memory made under capture is the graph's"
    assert not streams.happened


def test_another_devices_stream_is_not_this_launchs_affair(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    current = {0: 5, 1: 7}
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: current[index], raising=False)
    launch = launched_with(lender(100, torch.device("cuda", 1))(), lambda: None)
    current[0] = 99
    launch()
    assert not streams.happened


def test_scratch_is_zero_aligned_and_large_enough() -> None:
    for size in (20, 1024, 1025, 4240):
        found = lender(size, torch.device("cpu"))().memory
        assert found.tensor.nbytes >= size
        assert found.address % 16 == 0
        assert not found.tensor.any()
