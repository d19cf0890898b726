"""`with opwise.replacing():` dispatches torch's own calls of the five ops through opwise, in an otherwise unchanged program.

It reads torch's calls as counting.py does, below autograd: gradients are torch's, and products of backward passes are replaced too. Calls
that only contain an op stay torch's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from opwise.choosing import dispatch
from opwise.program.counting import watched

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
BY_OP: Mapping[str, Callable[..., Tensor]] = {op: getattr(dispatch, op) for op in dispatch.DISPATCHERS}


class Replacing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`replaced`: the number of calls that opwise dispatched; torch eager may be the choice for some."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.replaced = 0
        self.watched = watched()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func in self.watched and (found := self._op(func, args, kwargs)) is not None:
            op, inputs = found
            self.replaced += 1
            with torch.no_grad(), torch._C._DisableAutocast():  # both have had their say on the way here
                result = BY_OP[op](*(x.detach() if type(x) is Parameter else x for x in inputs))
            kept = op == "mean" and len(args) > 2 and args[2]
            return result.view((1,) * inputs[0].dim()) if kept else result
        return func(*args, **kwargs)

    def _op(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, tuple[Tensor, ...]] | None:
        """What the call is; None for a near miss, and for what opwise's functions do not compute."""
        found = None
        with contextlib.suppress(Exception):  # however it is spelled, the program goes on
            found = self.watched[func][1](args, kwargs)
        if found is None or found[1] or "out" in kwargs:
            return None
        op, _, inputs = found
        return (op, inputs) if all(map(_plain, inputs)) else None


def _plain(x: Tensor) -> bool:
    return type(x) in (Tensor, Parameter) and x.dtype in FLOATS and x.layout is torch.strided and not x.is_nested


@contextmanager
def replacing() -> Iterator[Replacing]:
    """Context manager: torch's calls of square, mean, gelu (tanh), softmax and matmul in this thread, and in its backward passes, are
    computed like `opwise.softmax(x)` and the other ops: by the stored figures, or by the table that OPWISE_CHOICES names.

        with opwise.replacing():
            loss = model(batch).mean()
            loss.backward()

    Every torch call within costs some microseconds more of CPU time, and torch.compile'd functions run uncompiled: use it where the GPU is
    the limit. Functions that are not an op of opwise (see `opwise record`) stay torch's."""
    with Replacing() as mode:
        yield mode
