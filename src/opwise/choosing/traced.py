"""The ops as torch.library operators for torch.compile: `torch.ops.opwise.softmax`, opaque, with a fake implementation for tracing, and
torch's gradient formulas (gradients.py).

Such an operator costs several microseconds per call, so eager calls do not use it. Each public function carries the function that Dynamo
traces in its place, in the attributes that torch itself uses (torch.jit.script and torch.compile)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.jit._builtins import _register_builtin

from opwise.choosing import dispatch
from opwise.choosing.gradients import FUNCTIONS
from opwise.ops import OPS

_library: Any = torch.library.Library("opwise", "FRAGMENT")  # type: ignore[no-untyped-call]  # lives as long as the operators are to


def _register(op: str) -> None:
    spec, function = OPS[op], getattr(dispatch, op)

    def compute(*inputs: Tensor) -> Tensor:
        result: Tensor = function(*(x.detach() for x in inputs))  # the operator has the gradient
        return result.contiguous()  # as the fake one is; torch eager keeps the strides of a strided input

    def fake(*inputs: Tensor) -> Tensor:
        return inputs[0].new_empty(spec.output_shape(*(tuple(x.shape) for x in inputs)))

    _library.define(f"{op}({', '.join(f'Tensor {name}' for name in spec.inputs)}) -> Tensor")
    _library.impl(op, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"opwise::{op}", fake, lib=_library)
    formula = FUNCTIONS[op]
    torch.library.register_autograd(
        f"opwise::{op}", lambda ctx, grad: formula.backward(ctx, grad)[1:], setup_context=formula.keep, lib=_library
    )
    traced = dispatch.DISPATCHERS[op].traced = _traced(op, dispatch.DISPATCHERS[op].eager, getattr(torch.ops.opwise, op))
    function._torchdynamo_inline = traced
    # torch.compile of the function itself, where no caller's frame is traced
    function._torchdynamo_orig_callable, function._torchdynamo_wrapper_id = traced, id(function)
    _register_builtin(function, f"opwise::{op}")  # what torch.jit.script writes for a call of it


def _traced(op: str, eager: Callable[..., Tensor], operator: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch's own function under autocast, else the operator, which dispatches when it runs."""

    def function(*inputs: Tensor) -> Tensor:
        casting = torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")
        return eager(*inputs) if casting else operator(*inputs)

    function.__code__ = function.__code__.replace(co_name=op)  # what Dynamo has compiled it counts for each code by itself
    return function


for _op in dispatch.DISPATCHERS.keys() & OPS.keys():  # asv puts an old commit's ops here, which may lack some
    _register(_op)
