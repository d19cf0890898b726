"""The history of mean."""

from __future__ import annotations

from benchmarks._tracked import _axes, _Bits, _Compiled, _Tracked

_TIMED, _BUILT = _axes("mean")


class Mean(_Tracked):
    op = "mean"
    params = _TIMED


class Compiled(_Compiled):
    op = "mean"
    params = _BUILT


class Bits(_Bits):
    op = "mean"
    params = _TIMED
