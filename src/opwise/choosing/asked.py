"""The question of a choice: a purpose, a workload, and the GPU to choose for."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from opwise import clocks
from opwise.choosing.ranking import PURPOSES
from opwise.choosing.store import Gpu, Store
from opwise.measure.device import facts
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.record import FULL


class NothingMeasured(LookupError):
    """No recorded figure matches; the message says what was looked for and which command measures it."""


def check(purpose: str, clock: str) -> None:
    """Raises ValueError for an unknown purpose or clock, and for purpose graph at full clock, which is never measured."""
    if purpose not in PURPOSES:
        raise ValueError(f"purpose {purpose!r} is unknown: known are {', '.join(PURPOSES)}")
    if clock not in clocks.CLOCKS:
        raise ValueError(f"clock {clock!r} is unknown: known are {', '.join(clocks.CLOCKS)}")
    if purpose == "graph" and clock == FULL:
        raise ValueError("purpose graph counts the warm time, which is taken power-capped: leave out clock, or ask for purpose kernel")


def workload_of(op: str, given: tuple[Any, ...], dtype: str | torch.dtype | None = None, layout: str = "") -> Workload:
    """The workload of these tensors, or of a shape with a dtype: see `choose`. Raises ValueError or TypeError that names what is
    accepted."""
    if op not in OPS:
        raise ValueError(f"op {op!r} is unknown: known are {', '.join(OPS)}")
    spec, name = OPS[op], None if dtype is None else str(dtype).removeprefix("torch.")
    if any(isinstance(x, Tensor) for x in given):
        spec.check_inputs(*(x.detach() if isinstance(x, Tensor) else x for x in given))
        workload = spec.workload_of(*given)
        if name not in (None, workload.dtype):
            raise ValueError(f"dtype {name} is given, but the tensors make it {workload.dtype}: leave out dtype")
        if layout and layout != (workload.layout or "NN"):
            raise ValueError(f"layout {layout} is given, but the tensors make it {workload.layout or 'NN'}: leave out layout")
        return workload
    shape = _shape(given)
    if name is None:
        raise TypeError(f"a shape without a dtype is given: add dtype=, one of {', '.join(spec.dtypes)}")
    if name not in spec.dtypes:
        raise ValueError(f"{op} has no dtype {name!r}: taken are {', '.join(spec.dtypes)}")
    if layout == "NN":
        layout = ""
    if layout not in spec.layouts:
        raise ValueError(f"layout {layout!r} is given for {op}: {', '.join(filter(None, spec.layouts)) or 'none'} is taken")
    workload = Workload(op, shape, name, layout)
    try:
        spec.cost(workload), spec.sizes(shape)
    except ValueError as error:
        example = spec.workloads["core"][0]
        of_python = "to unpack" in str(error)  # what an op of a fixed number of sizes raises
        why = f"{len(shape)} sizes are given, {len(example.shape)} are taken" if of_python else error
        raise ValueError(f"{shape} is no shape of {op} ({why}): one is {'x'.join(map(str, example.shape))}, as in {example}") from error
    return workload


def _shape(given: tuple[Any, ...]) -> tuple[int, ...]:
    parts = given[0] if len(given) == 1 and not isinstance(given[0], int) else given
    try:
        return tuple(int(n) for n in (parts.split("x") if isinstance(parts, str) else parts))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{parts!r} is no shape: give tensors, (4096, 4096) or '4096x4096'; a matmul's is MxKxN") from error


def gpu_here(device: str | torch.device | None) -> str:
    """The GPU to measure on, as cuda:0. Raises ValueError for a GPU that is not in this machine."""
    name = str(device if device is not None else "cuda:0")
    if not name.startswith("cuda"):
        raise ValueError(f"device {name!r} is given, a GPU of this machine is measured: give cuda:0, or leave it out")
    here(name)
    return f"cuda:{torch.device(name).index or 0}"


def gpu_of(store: Store, device: str | torch.device | None) -> Gpu:
    """The GPU to choose for. Raises NothingMeasured if nothing is on record, ValueError for an unknown device."""
    if device is None and not torch.cuda.is_available():
        if not store.gpus:
            raise NothingMeasured("no timed run is on record: `opwise run` on a machine with a GPU makes one")
        return store.gpus[0]
    name = str(device if device is not None else "cuda:0")
    if name.partition(":")[0] in ("cuda", "cpu"):
        return here(name)
    found = store.named(name)
    if not found:
        known = ", ".join(dict.fromkeys(gpu.device for gpu in store.gpus)) or "none"
        raise ValueError(f"device {name!r} is on no record: known are {known}; or cuda:0 for a GPU of this machine")
    return found[0]


def here(name: str) -> Gpu:
    """A GPU of this machine, by torch's name for it. Raises ValueError if it is missing."""
    device, count = torch.device(name), torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type != "cuda":
        raise ValueError("nothing is timed on the CPU, where torch eager is used: give cuda:0 or a recorded GPU such as 'nvidia-h200'")
    if (device.index or 0) >= count:
        raise ValueError(f"device {name!r} is not here: {f'cuda:0 to cuda:{count - 1}' if count else 'torch sees no GPU'}; "
                         "a recorded GPU is taken by its name, as in 'nvidia-h200'")  # fmt: skip
    properties = torch.cuda.get_device_properties(device)
    return Gpu(properties.name, f"{properties.major}.{properties.minor}")


@cache
def machine_with(gpu: Gpu) -> Any:
    """Driver and versions of this machine if it has such a GPU, else None."""
    if not torch.cuda.is_available():
        return None
    fitting = [n for n in range(torch.cuda.device_count()) if torch.cuda.get_device_name(n) == gpu.device]
    return facts(torch.device("cuda", fitting[0])) if fitting else None
