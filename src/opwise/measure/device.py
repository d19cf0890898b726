"""Facts of the machine: GPU, driver, clocks, library versions. Without the optional nvidia-ml-py, facts that only it knows are None."""

from __future__ import annotations

import os
import platform
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

# Distribution -> the name it is recorded under. Read from metadata: importing them all would cost seconds and start CUDA contexts.
DISTRIBUTIONS = {
    "torch": "torch",
    "triton": "triton",
    "cupy": "cupy",
    "cupy-cuda11x": "cupy",
    "cupy-cuda12x": "cupy",
    "cupy-cuda13x": "cupy",
    "numba": "numba",
    "numba-cuda": "numba-cuda",
    "numba-cuda-mlir": "numba-cuda-mlir",
    "numpy": "numpy",
    "cuda-bindings": "cuda-bindings",
    "nvidia-cuda-nvrtc": "nvrtc",
    "nvidia-ml-py": "nvidia-ml-py",
}
# nvidia-ml-py, nvmlClocksEventReason*: bits of why the clocks are not higher.
THROTTLE_REASONS = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal",
    0x040: "hardware thermal",
    0x080: "power brake",
    0x100: "display clocks",
}
POWER_REASONS = ("power cap", "hardware slowdown", "power brake")  # of these: the GPU would draw more than it may


def facts(device: torch.device) -> dict[str, Any]:
    """Facts to store beside a figure. Key names hold units; for a CPU, those of a GPU are missing."""
    found: dict[str, Any] = {
        "device": "cpu",
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "versions": _versions(),
    }
    if device.type != "cuda":
        return found
    properties = torch.cuda.get_device_properties(device)
    return found | {
        "device": properties.name,
        "uuid": str(properties.uuid),
        "capability": f"{properties.major}.{properties.minor}",
        "sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "driver": _driver(),
    }


def slug(found: Mapping[str, Any]) -> str:
    """The folder name of a device: 'nvidia-h200', 'cpu'. `found` is what `facts` returns, or any mapping with its 'device'."""
    return re.sub(r"[^a-z0-9]+", "-", str(found["device"]).lower()).strip("-") or "unknown"


def is_called(device: str, name: str) -> bool:
    """Returns whether `name` is the device's name, its short form, a prefix of that, or words of it: h100 is NVIDIA H100 80GB HBM3."""
    short, wanted = slug({"device": device}), slug({"device": name})
    return short.startswith(wanted) or f"-{wanted}-" in f"{short}-"


def short_uuid(uuid: str) -> str:
    """ "GPU-1a2b3c4d" from a GPU's UUID, with its prefix or, as torch writes it, without; enough to distinguish the GPUs of a machine."""
    prefix, _, rest = uuid.partition("-") if uuid.startswith(("GPU-", "MIG-")) else ("GPU", "", uuid)
    return f"{prefix}-{rest[:8]}" if rest else ""


@dataclass(frozen=True)
class State:
    """A GPU's state at one moment. None: not reported by this driver or machine."""

    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle: tuple[str, ...] = ()


class Monitor:
    """Reads clocks, temperature and power of one device through NVML. Without NVML every value is None."""

    def __init__(self, device: torch.device) -> None:
        self._nvml = _nvml() if device.type == "cuda" else None
        self._handle = _handle(self._nvml, device) if self._nvml is not None else None

    def sample(self) -> State:
        """Four queries to the driver, 0.35 ms on an H200: between batches, never inside one. The values are up to 0.2 s old."""
        clock = self._ask("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM")
        temperature = self._ask("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU")
        power = self._ask("nvmlDeviceGetPowerUsage")
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # the name of this question before driver 535
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return State(
            float(clock) if clock is not None else None,
            float(temperature) if temperature is not None else None,
            power / 1000.0 if power is not None else None,
            tuple(reason for bit, reason in THROTTLE_REASONS.items() if bits is not None and bits & bit),
        )

    def energy_mj(self) -> float | None:
        """Energy in mJ since the GPU's driver was loaded; the counter moves in steps of tens of milliseconds. From Volta on."""
        energy = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return float(energy) if energy is not None else None

    def _ask(self, question: str, *constants: str) -> Any:
        """One NVML call, None where it cannot be answered: virtual and partitioned GPUs refuse some of them."""
        if self._handle is None:
            return None
        try:
            return getattr(self._nvml, question)(self._handle, *(getattr(self._nvml, name) for name in constants))
        except (AttributeError, self._nvml.NVMLError):  # type: ignore[union-attr]
            return None


def _nvml() -> Any:
    """The module, initialised; None where it or the driver is missing."""
    try:
        with warnings.catch_warnings():  # torch's own copy of this import warns about another distribution of the same name
            warnings.simplefilter("ignore")
            import pynvml
        pynvml.nvmlInit()
    except Exception:
        return None
    return pynvml


def _handle(nvml: Any, device: torch.device) -> Any:
    """By UUID: CUDA_VISIBLE_DEVICES and CUDA's own order make torch's index another one than NVML's."""
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    for prefix in ("GPU-", "", "MIG-"):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(prefix + uuid)
        except nvml.NVMLError:
            continue
    return None


def _driver() -> str | None:
    nvml = _nvml()
    if nvml is not None:
        try:
            return str(nvml.nvmlSystemGetDriverVersion())
        except nvml.NVMLError:
            pass
    kernel_module = Path("/proc/driver/nvidia/version")
    if kernel_module.is_file():
        match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", kernel_module.read_text())
        return match.group(1) if match else None
    return None


def _versions() -> dict[str, str]:
    found = {}
    for distribution, name in DISTRIBUTIONS.items():
        try:
            found[name] = version(distribution)
        except PackageNotFoundError:
            continue
    return found | {"torch": torch.__version__}  # with its local part, which the distribution's version may lack


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        match = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        if match:
            return match.group(1).strip()
    return platform.processor() or platform.machine()
