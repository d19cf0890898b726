"""numba_cuda's way to the driver, with a driver that writes down what it is given."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from opwise.backends.numba_cuda.common import by_value, driver


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What cuLaunchKernelEx was given: grid, block, shared bytes, stream, kernel, and three parameters as the driver reads them."""
    found: list[Any] = []

    def enqueue(config: Any, function: Any, parameters: Any, extra: None) -> int:
        c = config.contents
        places = (ctypes.c_int64 * 3).from_address(parameters.value)
        read = tuple(ctypes.c_int64.from_address(place).value for place in places)
        found.append((tuple(c.grid), tuple(c.block), c.shared_bytes, c.stream, function.value, read))
        return 0

    monkeypatch.setattr(driver, "_library", lambda: SimpleNamespace(cuLaunchKernelEx=enqueue))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAMS[index][-1], raising=False)
    return found


STREAMS = {1: [0x5550]}


def test_a_launch_is_on_the_stream_of_its_time(launches: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue = driver.enqueuer(0x1234, (7, 2), 128, 4096, 1)
    run = driver.runner(enqueue, 3)
    run(-1, 2**40, 3)
    monkeypatch.setitem(STREAMS, 1, [0x6660])
    run(4, 5, 6)
    assert launches == [
        ((7, 2, 1), (128, 1, 1), 4096, 0x5550, 0x1234, (-1, 2**40, 3)),
        ((7, 2, 1), (128, 1, 1), 4096, 0x6660, 0x1234, (4, 5, 6)),
    ]


def test_a_parameter_by_value_is_read_where_it_lies(launches: list[Any]) -> None:
    room, described = driver.Room(3), ctypes.c_int64(99)
    room.values[:] = [ctypes.addressof(described), 2, 3]
    room.by_value(0, room.values[0])
    driver.enqueuer(1, (1, 1), 32, 0, 1)(room.at)
    assert launches[0][-1] == (99, 2, 3)


def test_a_launch_within_a_launch_has_a_room_of_its_own(launches: list[Any]) -> None:
    """As two threads have it: the second begins before the first has been enqueued."""
    enqueue = driver.enqueuer(1, (1, 1), 32, 0, 1)
    inner = [lambda: run(4, 5, 6)]

    def interrupted(at: Any) -> None:
        if inner:
            inner.pop()()
        enqueue(at)

    run = driver.runner(interrupted, 3)
    run(1, 2, 3)
    assert [given[-1] for given in launches] == [(4, 5, 6), (1, 2, 3)]


def test_clusters_go_behind_the_bound_on_threads() -> None:
    ptx = ".visible .entry k(.param .u64 a)\n.maxntid 512, 1, 1\n.minnctapersm 2\n{\n}\n"
    assert ".maxntid 512, 1, 1\n.explicitcluster\n.reqnctapercluster 4, 1, 1\n" in by_value.in_clusters(ptx, 4)
    assert by_value.in_clusters(ptx, 1) == ptx
    with pytest.raises(RuntimeError, match="0 .maxntid"):
        by_value.in_clusters("", 4)
