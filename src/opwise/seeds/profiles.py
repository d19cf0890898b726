"""torch's profilers, for the figures that the sources read from their tables: kernels by name and time, CPU time, stacks and labels.

Two: torch.profiler, and the older torch.autograd.profiler, which GPU MODE's notes use.

The sources' cuda_time_total is called device_time_total today; `export_stacks` writes an empty file unless the profiler was started with
`experimental_config`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.profiler_util import DeviceType as DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from opwise.seeds.place import Place

MOST_ROWS, NAME = 10, 60  # of a table: its rows, and characters of a name
NO_GPU = "tables of the CPU alone"


@dataclass(frozen=True)
class Profile:
    """`kernels`: (name, us) in the order of their starts, without copies and fills; for the autograd profiler, operators with a GPU's time.
    `cpu_us`: self CPU time of all, waiting included. `table`: key_averages, as printed."""

    kernels: tuple[tuple[str, float], ...]
    cpu_us: float
    table: str
    profiler: Any

    @property
    def kernel_us(self) -> float:
        return sum(us for _, us in self.kernels)


def profiled(place: Place, run: Callable[[], object], **options: Any) -> Profile:
    """One profile of one run, which ends with the GPU idle. options: of torch.profiler.profile."""
    place.wait()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if place.gpu else [])]
    with _quiet(), profile(activities=activities, **options) as profiler:
        run()
        place.wait()
    found = sorted((e for e in profiler.events() if _is_kernel(e)), key=lambda e: e.time_range.start)
    kernels = tuple((str(e.name), float(e.time_range.elapsed_us())) for e in found)
    averages = profiler.key_averages()
    return Profile(kernels, float(averages.self_cpu_time_total), _table(place, averages), profiler)


def autograd_profiled(place: Place, run: Callable[[], object]) -> Profile:
    """torch.autograd.profiler.profile of one run. On a GPU it takes the time between events around each operator, and records no
    kernels."""
    place.wait()
    with _quiet(), torch.autograd.profiler.profile(use_device="cuda" if place.gpu else None) as profiler:
        run()
        place.wait()
    averages = profiler.key_averages()
    timed = tuple((str(e.key), us) for e in averages if (us := _device_us(e)))
    return Profile(timed, float(averages.self_cpu_time_total), _table(place, averages), profiler)


def _device_us(average: Any) -> float:
    return float(average.self_device_time_total)


def _table(place: Place, averages: Any) -> str:
    order = "device_time_total" if place.gpu else "cpu_time_total"  # cuda_time_total, as the sources call it, is gone
    return str(averages.table(sort_by=order, row_limit=MOST_ROWS, max_name_column_width=NAME))


def warmed(place: Place, run: Callable[[], object]) -> None:
    """Warms up with a run and a discarded profile: the first profile of a process starts CUPTI."""
    run()
    profiled(place, run)


def with_stacks() -> dict[str, Any]:
    """Options for stacks that `export_stacks` writes and `group_by_stack_n` groups by."""
    config = getattr(torch._C._profiler, "_ExperimentalConfig", None)
    return {"with_stack": True, **({"experimental_config": config(verbose=True)} if config is not None else {})}


def _is_kernel(event: Any) -> bool:
    if event.device_type != DeviceType.CUDA or getattr(event, "is_user_annotation", False):
        return False
    return not str(event.name).startswith(("Memcpy", "Memset", "ProfilerStep"))


@contextmanager
def _quiet() -> Iterator[None]:
    """The profiler warns of itself: of a cycle that was not repeated, of CUPTI it did not find."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
