"""The history of rmsnorm, for asv: a link to this file in opwise's own `benchmarks` is all that it needs."""

from benchmarks._parameters import SHAPES

SHAPES["rmsnorm"] = ["1024x1024", "4096x4096", "16384x8192"]  # before what reads it

from benchmarks._tracked import _axes, _Bits, _Compiled, _Tracked  # noqa: E402

_TIMED, _BUILT = _axes("rmsnorm")


class Rmsnorm(_Tracked):
    op = "rmsnorm"
    params = _TIMED


class Compiled(_Compiled):
    op = "rmsnorm"
    params = _BUILT


class Bits(_Bits):
    op = "rmsnorm"
    params = _TIMED
