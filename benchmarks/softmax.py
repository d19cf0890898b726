"""The history of softmax."""

from __future__ import annotations

from benchmarks._tracked import _axes, _Bits, _Compiled, _Tracked

_TIMED, _BUILT = _axes("softmax")


class Softmax(_Tracked):
    op = "softmax"
    params = _TIMED


class Compiled(_Compiled):
    op = "softmax"
    params = _BUILT


class Bits(_Bits):
    op = "softmax"
    params = _TIMED
