"""Arguments that must be refused, for any op: what is given, and what the message must hold: the given, the taken, the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from support import DEVICE, small_workload
from torch import Tensor

from opwise.ops import OpSpec


class Refused(NamedTuple):
    name: str
    inputs: tuple[Any, ...]
    error: type[Exception]
    says: tuple[str, ...]


def good_inputs(spec: OpSpec, dtype: str = "float32") -> tuple[Tensor, ...]:
    return spec.make_inputs(small_workload(spec, dtype), DEVICE, 5)


def bad_inputs(spec: OpSpec) -> Iterator[Refused]:
    good = good_inputs(spec)
    every: dict[str, tuple[Callable[[Tensor], Any], type[Exception], tuple[str, ...]]] = {
        "list": (lambda x: x.tolist(), TypeError, ("given list", "torch.Tensor", "torch.as_tensor")),
        "none": (lambda x: None, TypeError, ("given NoneType", "torch.Tensor")),
        "int32": (lambda x: x.int(), TypeError, ("torch.int32", "float32, float16 and bfloat16", ".to(")),
        "float64": (lambda x: x.double(), TypeError, ("torch.float64", "float32, float16 and bfloat16", ".to(")),
        "complex64": (lambda x: x.to(torch.complex64), TypeError, ("torch.complex64", "float32, float16 and bfloat16")),
        "sparse": (lambda x: x.to_sparse(), TypeError, ("sparse_coo", "dense", ".to_dense()")),
        "grad": (lambda x: x.clone().requires_grad_(), ValueError, ("requires grad", "no backward", "x.detach()", "torch.no_grad()")),
    }
    for at, name in enumerate(spec.inputs):
        for case, (spoil, error, says) in every.items():
            yield Refused(f"{case}-{name}", (*good[:at], spoil(good[at]), *good[at + 1 :]), error, (spec.name, *says))
    yield Refused("too-few", good[:-1], TypeError, (f"takes {len(good)} tensor(s)", f"{len(good) - 1} given"))
    yield Refused("too-many", (*good, good[0]), TypeError, (f"takes {len(good)} tensor(s)", f"{len(good) + 1} given"))
    yield from _misfits(spec, good)


def _misfits(spec: OpSpec, good: tuple[Tensor, ...]) -> Iterator[Refused]:
    """Ranks and sizes that the op itself refuses, and inputs that do not go together."""
    for rank in range(4):
        inputs = tuple(torch.ones((3,) * rank, device=DEVICE) for _ in good)
        try:
            spec.output_shape(*(tuple(x.shape) for x in inputs))
        except ValueError:
            yield Refused(f"rank-{rank}", inputs, ValueError, (spec.name, "2-D", str((3,) * rank), "reshape"))
    if len(good) == 1:
        return
    longer = torch.ones(good[0].shape[0] + 40, good[0].shape[1] + 1, device=DEVICE)
    yield Refused("sizes", (longer, *good[1:]), ValueError, (spec.name, str(tuple(longer.shape)), str(tuple(good[1].shape)), "must equal"))
    yield Refused("dtypes", (good[0].half(), *good[1:]), TypeError, (spec.name, "torch.float16", "torch.float32", "one dtype"))
    elsewhere = good[0].to("cpu" if DEVICE.type != "cpu" else "meta")
    yield Refused("devices", (elsewhere, *good[1:]), ValueError, (spec.name, str(elsewhere.device), str(DEVICE), ".to()"))


def bad_outputs(spec: OpSpec) -> Iterator[tuple[Refused, Any]]:
    """(what must be said, the out that is given beside good inputs)"""
    good = good_inputs(spec)
    out = spec.empty_output(*good)
    elsewhere = "cpu" if DEVICE.type != "cpu" else "meta"
    cases: dict[str, tuple[Any, type[Exception], tuple[str, ...]]] = {
        "list": ([], TypeError, ("out must be a torch.Tensor", "given list")),
        "none": (None, TypeError, ("out must be a torch.Tensor", "given NoneType")),
        "dtype": (out.half(), TypeError, ("out is torch.float16", "torch.float32", "empty_output()")),
        "shape": (torch.ones(2, *out.shape, device=DEVICE), ValueError, (str((2, *out.shape)), str(tuple(out.shape)), "empty_output()")),
        "device": (out.to(elsewhere), ValueError, (f"out is on {elsewhere}", str(DEVICE), ".to()")),
        "grad": (torch.ones_like(out).requires_grad_(), ValueError, ("out requires grad", ".detach()")),
    }
    for case, (given, error, says) in cases.items():
        yield Refused(f"out-{case}", good, error, (spec.name, *says)), given
    if out.numel() <= good[0].numel():
        last = good[0].view(-1)[good[0].numel() - out.numel() :].view(out.shape)
        yield Refused("out-overlap", good, ValueError, (spec.name, "overlaps an input", "storage of its own")), last
