"""A GPU's rates and latencies, from which cost.py predicts the time of a product."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import torch

from opwise.backends import tuned_table
from opwise.measure.device import slug

# Cluster size in CTAs -> SMs of an H100 that such clusters can occupy at once, with one CTA an SM: cudaOccupancyMaxActiveClusters. A
# cluster lies within one GPC, which has 16 or 18 SMs.
CLUSTERED, CLUSTERED_OF = {1: 132, 2: 132, 3: 114, 4: 120, 6: 96, 8: 120, 16: 112}, 132
FILE = "gpu.json"


@dataclass(frozen=True)
class Machine:
    """What plans need to know of a GPU: SMs, compute capability, and the most shared memory a block can have, in bytes."""

    sms: int
    capability: tuple[int, int]
    shared_bytes: int

    @classmethod
    def of(cls, device: torch.device) -> Machine:
        """For a CPU device an H100's, so that the choice for an H100 can be shown without a GPU."""
        if device.type != "cuda":
            return HOPPER
        found = torch.cuda.get_device_properties(device)
        shared = int(getattr(found, "shared_memory_per_block_optin", 99 * 1024))
        return cls(found.multi_processor_count, (found.major, found.minor), shared)


HOPPER = Machine(132, (9, 0), 227 * 1024)


@dataclass(frozen=True)
class Gpu:
    """Rates are per SM and clock, latencies in clocks.

    wgmma, wgmma_tf32, mma, mma_tf32, fma: multiply-adds by each instruction. smem: bytes through shared memory. l2_sm, l2: bytes from the
    L2 where few SMs fetch, and where all do. dram: bytes a clock of the whole GPU. load: clocks of a warp-wide load. store, exchange:
    bytes of C stored, and of partial sums sent to another CTA of a cluster. warps: warps of an SM that saturate mma.sync and FMA.
    launch_us: of a launch, in us. latency: of a CTA, before its first step and after its last, together; setup: added for tensor maps by
    residue; barrier: of a cluster. fetch: DRAM latency of a step of K, divided by the stages. step, step_wgmma: synchronisation of a step.
    overlap, overlap_wgmma: exponents of the p-norms of a step's terms. pingpong_hides: fraction of a tile's epilogue that pingpong hides.
    """

    sms: int
    clock_mhz: float
    wgmma: float
    wgmma_tf32: float
    mma: float
    mma_tf32: float
    fma: float
    smem: float
    l2_sm: float
    l2: float
    dram: float
    load: float
    store: float
    exchange: float
    warps: float
    launch_us: float
    latency: float
    setup: float
    barrier: float
    fetch: float
    step: float
    step_wgmma: float
    overlap: float
    overlap_wgmma: float
    pingpong_hides: float

    def sms_of(self, cluster: int) -> int:
        """SMs that clusters of `cluster` CTAs can occupy at once: a multiple of `cluster`."""
        return max(CLUSTERED[cluster] * self.sms // CLUSTERED_OF // cluster, 1) * cluster


# Fitted to times of 465 products by all configurations of three backends, at full clock (docs/lab/matmul.md).
H100 = Gpu(
    sms=132,
    clock_mhz=1980.0,
    wgmma=2050.0,
    wgmma_tf32=1030.0,
    mma=1050.0,
    mma_tf32=481.0,
    fma=123.0,
    smem=129.0,
    l2_sm=65.5,
    l2=51.1,
    dram=1720.0,
    load=4.44,
    store=12.7,
    exchange=35.4,
    warps=4.28,
    launch_us=1.32,
    latency=1970.0,
    setup=696.0,
    barrier=1960.0,
    fetch=920.0,
    step=205.0,
    step_wgmma=62.1,
    overlap=1.45,
    overlap_wgmma=4.91,
    pingpong_hides=0.147,
)
SHIPPED: Mapping[str, Gpu] = {"NVIDIA H100 80GB HBM3": H100}


def path_of(root: Path, device: str) -> Path:
    """The file that `opwise tune --machine` writes for GPUs named `device`."""
    return root / slug({"device": device}) / FILE


def write(gpu: Gpu, root: Path, device: str) -> Path:
    path = path_of(root, device)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(gpu), indent=1) + "\n", encoding="utf-8")
    return part.replace(path)


def read(path: Path) -> Gpu | None:
    """None if there is no such file. Raises ValueError if it was not written by `write`."""
    if not path.is_file():
        return None
    try:
        return Gpu(**json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is no table of a GPU's numbers ({error}): opwise tune --machine makes it anew") from error


def of(device: torch.device) -> Gpu:
    """The measured numbers of a GPU, else the shipped ones; an H100's for a CPU. A file that cannot be read is skipped with a warning."""
    if device.type != "cuda":
        return H100
    return _of(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _of(index: int) -> Gpu:
    try:
        return stored(torch.cuda.get_device_name(index)) or shipped(index)
    except ValueError as error:
        warnings.warn(str(error), stacklevel=2)
        return shipped(index)


def stored(device: str) -> Gpu | None:
    """The measured numbers of GPUs named `device`, or None; also None if stored tables are switched off. Raises ValueError as `read`."""
    root = tuned_table.folder()
    return read(path_of(root, device)) if root is not None else None


def shipped(index: int) -> Gpu:
    """The shipped numbers of the GPU's model; else an H100's with the GPU's own SM count and clock."""
    found = torch.cuda.get_device_properties(index)
    if found.name in SHIPPED:
        return SHIPPED[found.name]
    return replace(H100, sms=found.multi_processor_count, clock_mhz=getattr(found, "clock_rate", 0) / 1000 or H100.clock_mhz)


def digest(device: str) -> str:
    """A hash of the measured numbers of GPUs named `device`, stored in records; "" if there are none."""
    try:
        found = stored(device)
    except ValueError:
        return ""
    return hashlib.sha256(json.dumps(asdict(found)).encode()).hexdigest()[:16] if found is not None else ""
