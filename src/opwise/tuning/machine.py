"""Measures a GPU for the numbers of gemm/gpu.py: times the CUDA C++ configurations that are predicted to be fastest at some forty products,
in under a minute, for fitting.py."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import cache, partial
from statistics import median
from typing import NamedTuple

import torch

from opwise.backends.gemm import gpu
from opwise.backends.gemm.choice import predictions
from opwise.backends.gemm.gpu import Gpu, Machine
from opwise.measure.device import Monitor
from opwise.measure.timing import Clock
from opwise.ops.spec import Workload
from opwise.runner.jobs import Job
from opwise.runner.seat import Seat
from opwise.runner.supervisor import Patience, WorkerLost
from opwise.tuning import bench
from opwise.tuning.bench import BASELINE, Stand
from opwise.tuning.fitting import Sample
from opwise.tuning.matmul import near, offered, product_of
from opwise.tuning.measuring import compiled
from opwise.tuning.planning import Sheet, builds
from opwise.tuning.standing import Facts

TABLE, THROUGH = "cuda_src/matmul", "cupy_raw"  # whose NVRTC compiles no more than is asked for
# (M, K, N), for each number some products whose time it decides: tiny ones, one row, few rows or columns, a long and a short K, several
# waves of tiles, and rows that begin anywhere.
PRODUCTS: Mapping[str, tuple[tuple[int, int, int], ...]] = {
    "bfloat16": (
        (32, 32, 32), (1, 768, 2304), (1, 4096, 4096), (16, 4096, 4096), (16, 14336, 4096), (256, 768, 768), (128, 16384, 128),
        (512, 8192, 512), (4096, 128, 4096), (4096, 4096, 128), (256, 4096, 32), (2048, 32, 4096), (1024, 1024, 1024), (1536, 1536, 1536),
        (2048, 2048, 2048), (2048, 768, 3072), (256, 4096, 4096), (512, 4096, 4096), (256, 5120, 13824), (3072, 3072, 3072),
        (4096, 4096, 4096), (583, 931, 781), (192, 421, 9985), (2060, 299, 12265), (4814, 1781, 10), (1380, 154, 26),
    ),
    "tfloat32": (
        (32, 32, 32), (16, 4096, 4096), (1024, 1024, 1024), (1870, 480, 384), (2048, 2048, 2048), (8192, 128, 8192), (583, 931, 781),
        (2183, 35, 2697),
    ),
    "float32": (
        (32, 32, 32), (16, 4096, 4096), (1024, 1024, 1024), (265, 1416, 1716), (2048, 2048, 2048), (8192, 128, 8192), (583, 931, 781),
        (12408, 47, 265),
    ),
}  # fmt: skip
NEAR, EACH = 2.0, 5  # times the least predicted; configurations of a product
FEWEST = 20  # products, of which there must be times
BUDGET_S, WARM_UP_S = 0.03, 0.03  # a configuration; a product
PATIENCE = Patience(turn_s=60.0)
PRODUCT_S = 0.6  # about, for the bar


class Outline(NamedTuple):
    """The planned measurements, and the GPU's shipped numbers."""

    sheet: Sheet
    start: Gpu


class Sampled(NamedTuple):
    """A product's samples, the SM clock meanwhile, and why configurations have no time."""

    samples: tuple[Sample, ...] = ()
    clock_mhz: float | None = None
    lost: tuple[str, ...] = ()


class Step(NamedTuple):
    """`text`: current step. `seconds`: elapsed part of the expected time. `found`: a product's result."""

    text: str
    seconds: float
    found: Sampled = Sampled()


def workloads() -> tuple[Workload, ...]:
    return tuple(Workload("matmul", shape, dtype) for dtype, shapes in PRODUCTS.items() for shape in shapes)


def outlined(turn: object, device_name: str) -> Outline:
    """A worker's request. On a CPU device, as for an H100."""
    device = torch.device(device_name)
    machine = Machine.of(device)
    start = gpu.shipped(device.index or 0) if device.type == "cuda" else gpu.H100
    found = {}
    for workload in workloads():
        product = product_of(workload)
        names = near(predictions(product, offered(TABLE, product, machine), start), NEAR, EACH)
        if len(names) > 1:  # else there is no choice to get wrong
            found[workload] = {name: f"{name} {workload.dtype}" for name in names}
    stand = Stand(TABLE, THROUGH, tuple(dict.fromkeys(name for names in found.values() for name in names)))
    jobs = tuple(Job(w, tuple(map(stand.implementation, names)), device_name, brief=True) for w, names in found.items())
    return Outline(Sheet(stand, jobs, {}, builds(stand, found)), start)


def measured(sheet: Sheet, device: str, facts: Facts) -> Generator[Step, None, None]:
    """Compiles, then times one product after the other. A lost worker costs its product. Closing the iterator ends the workers."""
    setup = partial(bench.install, (sheet.stand,))
    seat = Seat(device, setup=setup, facts=facts)
    try:
        for happened in compiled([sheet], seat, device, setup):
            yield Step(happened.text, happened.seconds)
        for job in sheet.jobs:
            yield Step(str(job.workload), 0.0)
            try:
                found = seat.start().ask("apply", (sampled, device, job.workload, job.implementations), PATIENCE)
            except WorkerLost as lost:
                seat.kill()
                found = Sampled(lost=(f"{job.workload}: {lost.reason}",))
            yield Step(str(job.workload), PRODUCT_S, found)
        seat.close()
    finally:
        seat.kill()


@cache
def _clock(device: torch.device) -> Clock:
    return Clock(device, Monitor(device))


def sampled(turn: object, device_name: str, workload: Workload, implementations: Sequence[str]) -> Sampled:
    """Times them in turns. A worker's request."""
    device = torch.device(device_name)
    torch.cuda.set_device(device)
    product, clock = product_of(workload), _clock(device)
    ours = offered(TABLE, product, Machine.of(device))
    with workload.precision(), torch.no_grad():
        launches, refused = bench.launches(workload, {name.partition(":")[2]: name for name in implementations}, device, clock)
        del launches[BASELINE]
        times = clock.cold(launches, budget_s=BUDGET_S, warm_up_s=WARM_UP_S)
    samples = tuple(Sample(str(workload), name, ours[name].work(product), time.median_us) for name, time in times.items())
    clocks = [time.sm_clock_mhz for time in times.values() if time.sm_clock_mhz]
    refused |= {name: clock.refusals.pop(name) for name in list(clock.refusals)}
    return Sampled(samples, median(clocks) if clocks else None, tuple(f"{workload} {name}: {why}" for name, why in refused.items()))
