"""The GPU operations that timing needs: a stream, marks (events), a spin, a flush, graphs.

`Queue` separates policy (rounds.py: how often, in which order, when to stop, what to refuse) from mechanism (here: CUDA through torch).
Tests drive the same policy with a queue of simulated time."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, Protocol

import torch

Launch = Callable[[], None]

# The flush copies this much, or twice the L2 where that is more, from one buffer to another: 256 MiB of traffic, 64 us on an H200.
FLUSH_BYTES = 128 << 20
FLUSH_L2 = 2
PROBE_CYCLES = 300_000  # about 0.15 ms: events resolve 0.3 % of it
PROBE_BACKLOG_US = 100.0  # for three calls, under a profiler too
SPIN_TRIAL_CYCLES = 4_000_000  # about 2 ms: long enough that the event's resolution of 0.5 us is 0.03 % of it
MARKS = 256  # events made beforehand: making one costs more than recording it


# Bound here, before code of others is imported: a function that is replaced afterwards measures nothing of ours.
_record, _reached, _elapsed_ms = torch.cuda.Event.record, torch.cuda.Event.query, torch.cuda.Event.elapsed_time
_synchronize, _cuda_sleep = torch.cuda.synchronize, torch.cuda._sleep
_capture_begin, _capture_end, _replay = torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.capture_end, torch.cuda.CUDAGraph.replay


class Queue(Protocol):
    """One stream of a GPU. Times are in microseconds."""

    l2_bytes: int

    def ready(self) -> contextlib.AbstractContextManager[None]:
        """Context in which all methods below run: sets the device and its current stream, and disables garbage collection."""

    def spin(self, us: float) -> None:
        """Enqueues a wait of this length: the backlog during which the CPU enqueues launches."""

    def flush(self) -> None:
        """Enqueues a flush that leaves nothing of earlier work in the L2."""

    def mark(self) -> Any:
        """Enqueues a time stamp."""

    def reached(self, mark: Any) -> bool:
        """Returns whether the GPU has passed the mark."""

    def wait(self) -> None:
        """Waits until the GPU is idle. Raises asynchronous errors of launches. Marks stay readable until 256 more are made."""

    def elapsed_us(self, start: Any, end: Any) -> float:
        """GPU time between two marks, after a wait."""

    def now_us(self) -> float:
        """The CPU's clock, us."""

    def clock_share(self) -> float:
        """The SM clock over the highest seen so far, at most 1; on an idle GPU it is still that of the last kernel."""

    def capture(self, launches: Sequence[Launch]) -> Launch:
        """One launch that replays all of these, in order, back to back. Raises if one of them cannot be captured."""


class CudaQueue:
    """torch's current stream on one device, as it is when `ready` is entered."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.l2_bytes = int(torch.cuda.get_device_properties(device).L2_cache_size)
        words = max(FLUSH_BYTES, FLUSH_L2 * self.l2_bytes) // 4
        self._source = torch.empty(words, device=device).normal_()
        self._target = torch.empty_like(self._source)
        self._largest = torch.empty((), device=device)
        self.flushes = {"mixed": self._flush_mixed, "dirty": self._flush_dirty, "clean": self._flush_clean}
        self.flush = self.flushes["clean"]
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream = torch.cuda.current_stream(device)
        self._marks = [torch.cuda.Event(enable_timing=True) for _ in range(MARKS)]  # type: ignore[no-untyped-call]
        self._next = 0
        with self.ready():
            for flush in self.flushes.values():
                flush()
            self._cycles_per_us = self._spin_rate()
            self._quickest_probe_us = min(self._probe_us() for _ in range(5))

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        collecting = gc.isenabled()
        with torch.cuda.device(self.device):
            self._stream = torch.cuda.current_stream()
            gc.disable()  # a collection of some ms between two launches would starve the GPU, or be taken for launch cost
            try:
                yield
            finally:
                if collecting:
                    gc.enable()

    def _spin_rate(self) -> float:
        """Cycles a microsecond: the highest of three, since an idle GPU starts slowly and a spin must never be too short."""
        rates = []
        for _ in range(3):
            start = self.mark()
            _cuda_sleep(SPIN_TRIAL_CYCLES)  # type: ignore[no-untyped-call]
            end = self.mark()
            self.wait()
            rates.append(SPIN_TRIAL_CYCLES / self.elapsed_us(start, end))
        return max(rates)

    def spin(self, us: float) -> None:
        _cuda_sleep(int(us * self._cycles_per_us))  # type: ignore[no-untyped-call]

    def clock_share(self) -> float:
        us = self._probe_us()
        self._quickest_probe_us = min(self._quickest_probe_us, us)
        return self._quickest_probe_us / us

    def _probe_us(self) -> float:
        """GPU time of a spin of known cycles: the clock as it is now, where the driver's word is of up to 0.2 s ago."""
        self.spin(PROBE_BACKLOG_US)
        start = self.mark()
        _cuda_sleep(PROBE_CYCLES)  # type: ignore[no-untyped-call]
        end = self.mark()
        self.wait()
        return self.elapsed_us(start, end)

    def _flush_mixed(self) -> None:
        """A copy, half of whose lines are dirty: readers were charged 7 % for them on an H200. Kept for the calibration."""
        torch.neg(self._source, out=self._target)

    def _flush_dirty(self) -> None:
        """Writes only: whoever comes next also pays for writing an L2 full of foreign lines back."""
        self._target.fill_(1.0)

    def _flush_clean(self) -> None:
        """Writes, then reads elsewhere. The one in use: of the three it agrees with rotated buffers, for readers and for writers, so
        that a workload's figure does not jump where its size changes the method. See docs/measuring.md."""
        self._target.fill_(1.0)
        torch.amax(self._source, dim=0, out=self._largest)

    def mark(self) -> torch.cuda.Event:
        event = self._marks[self._next]
        self._next = (self._next + 1) % MARKS
        _record(event, self._stream)  # without the argument torch looks the stream up, for 4 us
        return event

    def reached(self, mark: torch.cuda.Event) -> bool:
        return bool(_reached(mark))  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        _synchronize(self.device)

    def elapsed_us(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(_elapsed_ms(start, end)) * 1e3

    def now_us(self) -> float:
        return perf_counter_ns() / 1e3

    def capture(self, launches: Sequence[Launch]) -> Launch:
        """Captured on a side stream after one launch there: what a library sets up for a new stream must not be captured.

        `torch.cuda.graph` is not used: it empties torch's cache first, a second for large buffers, and leaves the side stream
        current when a launch raises. Thread-local mode: another thread's allocations are not this capture's business.
        """
        self.wait()
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        failure: Exception | None = None
        with torch.cuda.stream(self._side):
            launches[0]()
            self.wait()
            _capture_begin(graph, pool=pool, capture_error_mode="thread_local")
            try:
                for launch in launches:
                    launch()
            except Exception as error:
                failure = error
            try:
                _capture_end(graph)  # also after a failure: the stream must leave capture mode
            except RuntimeError as error:
                failure = failure or error
                with contextlib.suppress(Exception):  # what capture_end skips when the capture was invalid
                    torch._C._cuda_endAllocateToPool(self.device.index or 0, pool)
        self.wait()
        if failure is not None:
            raise failure
        return partial(_replay, graph)
