"""The history of square."""

from __future__ import annotations

from benchmarks._tracked import _axes, _Bits, _Compiled, _Tracked

_TIMED, _BUILT = _axes("square")


class Square(_Tracked):
    op = "square"
    params = _TIMED


class Compiled(_Compiled):
    op = "square"
    params = _BUILT


class Bits(_Bits):
    op = "square"
    params = _TIMED
