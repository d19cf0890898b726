"""What a call of `opwise.softmax(x)` and kin takes, as asv times anything: with the choice of the backend, on a small tensor, where the
host is what counts. On a GPU alone. `track_call_cost` of the ops' own classes is the same of each backend, judged beside torch eager's.

There is no `setup`: asv would run it between any two calls that it times.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented

from benchmarks._parameters import DTYPES, SHAPES

SHAPE = {op: shapes[0] for op, shapes in SHAPES.items()}


@cache
def _call(op: str, dtype: str) -> Callable[[], Any]:
    """Raises SkipNotImplemented where this commit has no such call."""
    import torch

    try:
        from opwise.choosing import dispatch
        from opwise.ops import OPS
        from opwise.ops.spec import Workload

        function, spec = getattr(dispatch, op), OPS[op]
    except (ImportError, AttributeError, KeyError) as error:
        raise SkipNotImplemented(f"opwise.{op}: not in this commit: {error}") from error
    workload = Workload.parse(f"{op}/{SHAPE[op]}/{dtype}")
    inputs = spec.make_inputs(workload, torch.device("cuda:0"), 1)

    def call() -> None:
        function(*inputs)

    with warnings.catch_warnings(action="ignore"):  # stale figures: the stored ones are of today's kernels, not of an old commit's
        call()
    torch.cuda.synchronize()
    return call


class Calls:
    params = (list(SHAPES), DTYPES)
    param_names = ("op", "dtype")
    warmup_time = 0.5  # the first call builds
    rounds = 2
    timeout = 300.0
    version = "1"

    def time_call(self, op: str, dtype: str) -> None:
        _call(op, dtype)()
