"""One try: a workload, its inputs' values, the tensors' offsets in memory, and a seed. Its text contains all of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from opwise.measure.validate import Guarded
from opwise.ops import OPS
from opwise.ops.spec import LAYOUTS, OpSpec, Workload

TAKEN = "op/shape/dtype[/LAYOUT][/values=NAME][/offset=N][/seed=N], as in matmul/33x17x5/bfloat16/offset=1/seed=7"


@dataclass(frozen=True)
class Case:
    """`offsets`: elements from a 256-byte boundary to the start of each input and, last, of the output."""

    workload: Workload
    values: str = "normal"
    offsets: tuple[int, ...] = ()
    seed: int = 0

    def __str__(self) -> str:
        one = self.offsets[:1] if len(set(self.offsets)) == 1 else self.offsets
        told = [f"values={self.values}"] if self.values != "normal" else []
        told += [f"offset={','.join(map(str, one))}"] if any(one) else []
        return "/".join([str(self.workload), *told, f"seed={self.seed}"])

    @classmethod
    def parse(cls, text: str) -> Case:
        """Parses `str()`'s format; `offset=1` applies to all tensors. Raises ValueError with the accepted form."""
        parts = text.split("/")
        named = 4 if parts[3:] and parts[3] in LAYOUTS else 3
        try:
            found = Workload.parse("/".join(parts[:named]))
            given = dict(part.split("=") for part in parts[named:])
            count = len(OPS[found.op].inputs) + 1
            offsets = tuple(int(n) for n in given.pop("offset", "0").split(","))
            case = cls(found, given.pop("values", "normal"), offsets * count if len(offsets) == 1 else offsets, int(given.pop("seed", "0")))
        except (KeyError, ValueError) as error:
            raise ValueError(f"{text!r} is no case: write {TAKEN}") from error
        spec = OPS[found.op]
        if given or case.values not in VALUES or len(case.offsets) != count or min(case.offsets) < 0 or case.seed < 0:
            raise ValueError(f"{text!r} is no case: write {TAKEN}; values are {', '.join(VALUES)}, offsets one or {count}, from 0 on")
        if found.dtype not in spec.dtypes or len(found.shape) not in ranks(spec):
            sizes = " or ".join(map(str, ranks(spec)))
            raise ValueError(f"{text!r}: {found.op} takes {', '.join(spec.dtypes)} and shapes of {sizes} sizes, (M, K, N) of a product")
        return case

    def inputs(self, device: torch.device) -> tuple[Tensor, ...]:
        """Inputs, each between bytes 0xFF, which a kernel that reads past the ends sees as nan."""
        made = VALUES[self.values](OPS[self.workload.op], self.workload, device, self.seed)
        return tuple(_moved(x, offset) for x, offset in zip(made, self.offsets, strict=False))

    def output(self, shape: tuple[int, ...], device: torch.device) -> Guarded:
        return Guarded(shape, self.workload.torch_dtype, device, offset=self.offsets[-1])


def ranks(spec: OpSpec) -> list[int]:
    """The numbers of sizes that shapes of the op have, by its named workloads."""
    return sorted({len(w.shape) for named in spec.workloads.values() for w in named})


def _moved(x: Tensor, offset: int) -> Tensor:
    if x.ndim == 2 and not x.is_contiguous():  # a transpose
        return _moved(x.t(), offset).t()
    copy = Guarded(x.shape, x.dtype, x.device, offset=offset, guard=0xFF).tensor
    copy.copy_(x)
    return copy


Inputs = tuple[Tensor, ...]


def _sparse(spec: OpSpec, workload: Workload, device: torch.device, seed: int) -> Inputs:
    """N(0, 1) in one element of eight, else 0: of the few that count each counts for much."""
    draw = torch.Generator(device).manual_seed(seed)
    return tuple(
        torch.where(torch.rand(x.shape, device=device, generator=draw) < 1 / 8, x, 0.0) for x in spec.make_inputs(workload, device, seed)
    )


def _special(spec: OpSpec, workload: Workload, device: torch.device, seed: int) -> Inputs:
    """N(0, 1), and of each input up to three elements that are inf, nan, the largest, or about the least."""
    info = torch.finfo(workload.torch_dtype)
    largest = (2 - 2**-10) * 2.0**127 if workload.dtype == "tfloat32" else info.max  # above it rounding to TF32 gives inf
    least = info.smallest_normal * info.eps
    values = (math.inf, -math.inf, math.nan, largest, -largest, info.smallest_normal, least, -least)
    draw = torch.Generator().manual_seed(seed)
    made = spec.make_inputs(workload, device, seed)
    for x in made:
        for _ in range(int(torch.randint(0, 4, (), generator=draw)) if x.numel() else 0):
            at, which = (int(torch.randint(0, n, (), generator=draw)) for n in (x.numel(), len(values)))
            x.view(-1)[at] = values[which]
    return made


# The simplest first: hypothesis shrinks towards it.
VALUES: Mapping[str, Callable[[OpSpec, Workload, torch.device, int], Inputs]] = {
    "normal": lambda spec, workload, device, seed: spec.make_inputs(workload, device, seed),
    "hard": lambda spec, workload, device, seed: spec.hard_inputs(workload, device, seed),
    "sparse": _sparse,
    "special": _special,
}
