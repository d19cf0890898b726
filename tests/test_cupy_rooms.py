"""How a call of cupy_raw gets to the driver, which is played here: what it reads, who shares memory, what an error does."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from opwise.backends.cupy_raw.rooms import INVALID_CONTEXT, caller

CONFIGURATION = (77, 1, 2, 3, 4, 5, 6, 7)  # a handle, grid, block, shared bytes


class DriverError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"error {status}")
        self.status = status


class Driver:
    """As cuLaunchKernel: reads each parameter where it lies. `gate`: a launch ends when all threads have begun theirs."""

    def __init__(self, gate: threading.Barrier | None = None, status: int = 0, parameters: int = 0) -> None:
        self.read: list[tuple[int, ...]] = []
        self.gate, self.status, self.parameters = gate, status, parameters

    def __call__(self, *given: int) -> None:
        *configuration, stream, at, extra = given
        assert tuple(configuration) == CONFIGURATION
        assert extra == 0
        if self.gate is not None:
            self.gate.wait(10)
        if self.status:
            raise DriverError(self.status)
        places = (ctypes.c_int64 * self.parameters).from_address(at)
        self.read.append((stream, *(ctypes.c_int64.from_address(place).value for place in places)))


def refuse(*given: int) -> None:
    raise AssertionError(f"launched another way: {given}")


def streams() -> Callable[[int], int]:
    """Of GPU 3: stream 11, 12, ..., at each launch another."""
    numbers = itertools.count(11)
    return lambda index: next(numbers) if index == 3 else 0


def addresses(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(x.data_ptr() for x in tensors)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("scratch", [(), (2**63 - 1,)])
def test_the_driver_reads_what_was_given_each_time(count: int, scratch: tuple[int, ...]) -> None:
    driver, lengths = Driver(parameters=count + 3 + len(scratch)), (-1, 2**40)
    call = caller(driver, CONFIGURATION, lengths, streams(), 3, refuse, with_scratch=bool(scratch))(torch.empty(5, 7))
    for turn in range(3):
        inputs = [torch.empty(5) for _ in range(count)]
        more = tuple(value - turn for value in scratch)
        out = call(*more, *inputs)
        assert driver.read[turn] == (11 + turn, *addresses(*inputs, out), *lengths, *more)
        assert out.shape == (5, 7)
        assert out.untyped_storage().nbytes() >= 5 * 7 * 4


def test_launches_at_the_same_time_share_no_parameters() -> None:
    driver = Driver(threading.Barrier(4), parameters=3)
    call = caller(driver, CONFIGURATION, (9,), streams(), 3, refuse)(torch.empty(1))
    inputs, outs = [torch.empty(1) for _ in range(4)], list[tuple[Tensor, Tensor]]()
    for _ in range(3):
        threads = [threading.Thread(target=lambda x=x: outs.append((x, call(x)))) for x in inputs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(read[1:] for read in driver.read) == sorted((*addresses(x, out), 9) for x, out in outs)


def test_without_a_context_the_launch_goes_the_other_way_and_other_errors_are_told() -> None:
    instead: list[tuple[int, ...]] = []
    driver, x = Driver(status=INVALID_CONTEXT), torch.empty(1)
    out = caller(driver, CONFIGURATION, (9,), streams(), 3, lambda *given: instead.append(given))(x)(x)
    assert instead == [(11, *addresses(x, out), 9)]
    with pytest.raises(DriverError, match="error 700"):
        caller(Driver(status=700), CONFIGURATION, (9,), streams(), 3, refuse)(x)(x)
