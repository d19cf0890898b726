"""The history of matmul."""

from __future__ import annotations

from typing import Any

from benchmarks._parameters import PRODUCT_DTYPES
from benchmarks._tracked import Cells, _axes, _Bits, _Compiled, _Tracked

_TIMED, _BUILT = _axes("matmul", PRODUCT_DTYPES)


class Matmul(_Tracked):
    op = "matmul"
    params = _TIMED

    def track_kernel_cold(self, cells: Cells, backend: str, shape: str, dtype: str) -> Any:
        return super().track_kernel_cold(cells, backend, shape, dtype)

    track_kernel_cold.version = "3"  # type: ignore[attr-defined]  # at full clock since; what was power-capped is track_kernel_capped's
    track_kernel_cold.unit = "seconds"  # type: ignore[attr-defined]


class Compiled(_Compiled):
    op = "matmul"
    params = _BUILT


class Bits(_Bits):
    op = "matmul"
    params = _TIMED
