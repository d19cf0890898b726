"""The history of matmul."""

from __future__ import annotations

from benchmarks._parameters import PRODUCT_DTYPES
from benchmarks._tracked import _axes, _Compiled, _Tracked

_TIMED, _BUILT = _axes("matmul", PRODUCT_DTYPES)


class Matmul(_Tracked):
    op = "matmul"
    params = _TIMED


class Compiled(_Compiled):
    op = "matmul"
    params = _BUILT
