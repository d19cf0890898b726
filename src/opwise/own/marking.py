"""The decorator that marks a user's function as a kernel of an op, and the adapter from a function to the protocol's launches."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from opwise.backends.protocol import Bind, Launch, Variant
from opwise.ops import OPS

MARK = "__opwise_kernels__"
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Kernel:
    """The decorator's data, kept with a function."""

    op: str
    variant: str
    source: Variant


def kernel(op: str, *, variant: str = "", build: bool = False, summary: str = "", fault: str | None = None) -> Callable[[F], F]:
    """Marks a function as a kernel of an op; the function itself is unchanged. `opwise run --with FILE` finds it by its mark.

    variant: another version of the op in the same file. fault: its known fault. Raises ValueError for an unknown op, TypeError for
    `build=True` on a function without `out`."""
    if op not in OPS:
        raise ValueError(f"opwise.kernel({op!r}): unknown op: known are {', '.join(OPS)}")

    def mark(function: F) -> F:
        told = summary or (inspect.getdoc(function) or function.__name__).splitlines()[0]
        writes = "out" in inspect.signature(function).parameters
        if build and not writes:
            raise TypeError(f"opwise.kernel({op!r}, build=True): {function.__name__} has no parameter `out`: build(*inputs, out) is taken")
        if build:
            source = Variant(function, told, fault)
        else:
            source = Variant(_writing(function), told, fault) if writes else Variant(_returning(function), told, fault, call=function)
        setattr(function, MARK, (*getattr(function, MARK, ()), Kernel(op, variant, source)))
        return function

    return mark


def _writing(function: Callable[..., Any]) -> Callable[..., Bind]:
    """The build of a function that writes into `out`."""

    def bind(*tensors: Tensor) -> Launch:
        *inputs, out = tensors

        def launch() -> None:
            if callable(function(*inputs, out=out)):
                raise TypeError(f"{function.__name__} returned a function: if it builds, say @opwise.kernel(..., build=True)")

        return launch

    return lambda *tensors: bind


def _returning(function: Callable[..., Any]) -> Callable[..., Bind]:
    """The build of a function that returns a new tensor: launching it includes the copy into `out`, which is its price."""

    def bind(*tensors: Tensor) -> Launch:
        *inputs, out = tensors

        def launch() -> None:
            out.copy_(function(*inputs))

        return launch

    def build(*tensors: Tensor) -> Bind:
        *inputs, out = tensors
        found = function(*inputs)
        if type(found) is not Tensor or (found.shape, found.dtype, found.device) != (out.shape, out.dtype, out.device):
            told = f"{found.dtype} of shape {tuple(found.shape)}" if type(found) is Tensor else type(found).__name__
            raise TypeError(f"{function.__name__} returned {told}: a tensor of {out.dtype}, shape {tuple(out.shape)}, is taken")
        return bind

    return build
