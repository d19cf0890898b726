"""A call whose inputs have been checked: allocate the output, launch, return it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Launch = Callable[[], None]
Bind = Callable[..., Launch]


@dataclass(frozen=True, slots=True)
class AtOnce:
    """A bind with a faster path for calls. run(*inputs, out) is equal to bind(*inputs, out)() without creating the launch object. A backend
    that allocates faster than torch.empty_like has `call_of` instead: call_of(sample output)(*inputs) allocates, launches and returns."""

    bind: Bind
    run: Callable[..., None] | None = None
    call_of: Callable[[Tensor], Callable[..., Tensor]] | None = None

    def __call__(self, *tensors: Tensor) -> Launch:
        return self.bind(*tensors)


def calling(bind: Bind, out: Tensor) -> Callable[..., Tensor]:
    """The call for inputs whose output is like `out`."""
    if isinstance(bind, AtOnce) and bind.call_of is not None:
        return bind.call_of(out)
    run = (bind.run if isinstance(bind, AtOnce) else None) or _bound_and_run(bind)
    like, empty_like = without_memory(out), torch.empty_like  # torch.empty parses shape, dtype and device each time: 1 us

    def call(*inputs: Tensor) -> Tensor:
        out = empty_like(like)
        run(*inputs, out)
        return out

    return call


def _bound_and_run(bind: Bind) -> Callable[..., None]:
    def run(*tensors: Tensor) -> None:
        bind(*tensors)()

    return run


def without_memory(out: Tensor) -> Tensor:
    """A tensor with the metadata of `out`, for torch.empty_like, that holds no memory."""
    like: Any = torch.empty_like(out)
    like.untyped_storage().resize_(0)
    return like  # type: ignore[no-any-return]
