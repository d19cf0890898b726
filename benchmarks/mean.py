"""The history of mean."""

from __future__ import annotations

from benchmarks._tracked import _axes, _Compiled, _Tracked

_TIMED, _BUILT = _axes("mean")


class Mean(_Tracked):
    op = "mean"
    params = _TIMED


class Compiled(_Compiled):
    op = "mean"
    params = _BUILT
