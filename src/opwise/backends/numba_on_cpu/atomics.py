"""`cuda.atomic` on NumPy arrays. Fibres switch only when they wait, never here, so each is atomic. All return the old value."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np


def _by(change: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    def atomic(array: Any, at: Any, value: Any) -> Any:
        old = array[at]
        array[at] = change(old, array.dtype.type(value))
        return old

    return atomic


def _cas(array: Any, at: Any, expected: Any, value: Any) -> Any:
    old = array[at]
    if old == expected:
        array[at] = value
    return old


ATOMIC = SimpleNamespace(
    add=_by(lambda old, value: old + value),
    sub=_by(lambda old, value: old - value),
    max=_by(np.maximum),
    min=_by(np.minimum),
    nanmax=_by(np.fmax),
    nanmin=_by(np.fmin),
    and_=_by(lambda old, value: old & value),
    or_=_by(lambda old, value: old | value),
    xor=_by(lambda old, value: old ^ value),
    exch=_by(lambda old, value: value),
    inc=_by(lambda old, limit: old * 0 if old >= limit else old + 1),
    dec=_by(lambda old, limit: limit if old == 0 or old > limit else old - 1),
    cas=_cas,
)
