"""Vector addition, the first kernel of the Triton 1.0 article, in its two models: a block of 1024 per program in Triton, one element per
thread in Numba."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from opwise.backends import probe
from opwise.backends.protocol import BackendUnavailable, Launch
from opwise.ops.spec import normal
from opwise.seeds.clocks import timed, told_us
from opwise.seeds.experiment import Findings
from opwise.seeds.models import python_lines
from opwise.seeds.place import Place

Bound = Callable[[Tensor, Tensor, Tensor], Launch]
MODELS = {"Triton": ("triton_jit", "opwise.seeds.triton_kernels"), "Numba": ("numba_cuda", "opwise.seeds.numba_kernels")}
SIZE, SMALL_SIZE = 1 << 26, 1029  # 805 MB in and out; and no multiple of a block


def vectors(place: Place) -> Findings:
    """Both are exact, so both must equal torch's sum. Counts lines from the decorator on; on a GPU, also times beside torch.add's."""
    n = SIZE + 5 if place.gpu else SMALL_SIZE
    tensors = cache(lambda i: _tensors(place, n, i))
    bound: dict[str, Bound] = {}
    lines: dict[str, float] = {}
    problems = []
    for label, (backend, module) in MODELS.items():
        try:
            probe(backend, place.device)
        except BackendUnavailable as error:
            problems.append(f"{label}: {error}")
            continue
        kernels = importlib.import_module(module)
        bound[label], lines[label] = kernels.bound_add, python_lines(inspect.getsource(getattr(kernels.add, "fn", kernels.add)))
        x, y, out = tensors(0)
        bound[label](x, y, out.fill_(float("nan")))()
        place.wait()
        if not torch.equal(out, x + y):
            problems.append(f"{label} is wrong")
    here, figures = ", ".join(f"{label} {count} lines" for label, count in lines.items()), {f"{k}, lines": v for k, v in lines.items()}
    said = "; ".join(problems) or f"{' and '.join(bound)} equal torch's sum"
    if not place.gpu or problems:
        return Findings(here, said, not problems, figures=figures)
    bound["torch"] = lambda x, y, out: lambda: _added(x, y, out)
    launches = {label: lambda i, bind=bind: bind(*tensors(i)) for label, bind in bound.items()}
    us = {label: timing.median_us for label, timing in timed(place, launches, 12 * n).items()}
    figures |= {f"{label}, cold, us": value for label, value in us.items()}
    return Findings(f"{here}; {', '.join(f'{label} {told_us(value)}' for label, value in us.items())}", said, figures=figures)


def _tensors(place: Place, n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    x, y = (normal((n,), torch.float32, place.device, 2 * seed + i) for i in range(2))
    return x, y, torch.empty_like(x)


def _added(x: Tensor, y: Tensor, out: Tensor) -> None:
    torch.add(x, y, out=out)
