"""The history of gelu."""

from __future__ import annotations

from benchmarks._tracked import _axes, _Bits, _Compiled, _Tracked

_TIMED, _BUILT = _axes("gelu")


class Gelu(_Tracked):
    op = "gelu"
    params = _TIMED


class Compiled(_Compiled):
    op = "gelu"
    params = _BUILT


class Bits(_Bits):
    op = "gelu"
    params = _TIMED
