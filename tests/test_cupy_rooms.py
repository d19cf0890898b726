"""How a call of cupy_raw gets to the driver, which is played here: what it reads, who shares memory, what an error does."""

from __future__ import annotations

import ctypes
import threading

import pytest

from opwise.backends.cupy_raw.rooms import INVALID_CONTEXT, runner

CONFIGURATION = (77, 1, 2, 3, 4, 5, 6, 7)  # a handle, grid, block, shared bytes


class DriverError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"error {status}")
        self.status = status


class Driver:
    """As cuLaunchKernel: reads each parameter where it lies. `gate`: a launch ends when all threads have begun theirs."""

    def __init__(self, gate: threading.Barrier | None = None, status: int = 0) -> None:
        self.read: list[tuple[int, ...]] = []
        self.gate, self.status = gate, status

    def __call__(self, *given: int) -> None:
        *configuration, stream, at, extra = given
        assert tuple(configuration) == CONFIGURATION
        assert extra == 0
        if self.gate is not None:
            self.gate.wait(10)
        if self.status:
            raise DriverError(self.status)
        places = (ctypes.c_int64 * 3).from_address(at)
        self.read.append((stream, *(ctypes.c_int64.from_address(place).value for place in places)))


def refuse(*given: int) -> None:
    raise AssertionError(f"launched another way: {given}")


def test_the_driver_reads_what_was_given_each_time() -> None:
    driver = Driver()
    run = runner(driver, CONFIGURATION, 3, instead=refuse)
    calls = [(5, 2**47 - 16, -1, 0), (6, 1, 2, 3), (5, 2**63 - 1, -(2**63), 4)]
    for call in calls:
        run(*call)
    assert driver.read == calls


def test_launches_at_the_same_time_share_no_parameters() -> None:
    driver = Driver(threading.Barrier(4))
    run = runner(driver, CONFIGURATION, 3, instead=refuse)
    calls = [(stream, stream, 10 * stream, 100 * stream) for stream in range(4)]
    for _ in range(3):
        threads = [threading.Thread(target=run, args=call) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(driver.read) == sorted(3 * calls)


def test_without_a_context_the_launch_goes_the_other_way_and_other_errors_are_told() -> None:
    instead: list[tuple[int, ...]] = []
    run = runner(Driver(status=INVALID_CONTEXT), CONFIGURATION, 3, instead=lambda *given: instead.append(given))
    run(5, 1, 2, 3)
    assert instead == [(5, 1, 2, 3)]
    with pytest.raises(DriverError, match="error 700"):
        runner(Driver(status=700), CONFIGURATION, 3, instead=refuse)(5, 1, 2, 3)
