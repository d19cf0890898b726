"""numba_cuda's stream of long rows, in fibres: all blocks at once, in orders drawn by lot. Rows are as small as its waits allow."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numba_product_fibres import module, translation
from numba_stream_fibres import AllAtOnce, instructions
from support import in_stand_in, worst_error

from opwise.backends import numba_on_cpu
from opwise.backends.numba_on_cpu.fibres import Fault, Memory
from opwise.ops import Workload

pytestmark = in_stand_in
# dtype, warps, pieces of a lane, stages, lag, SMs; rows, 16-byte pieces of a row.
CASES = {
    "several blocks and groups": ("float32", (2, 1, 4, 2), 5, 9, 127),
    "more turns than places": ("bfloat16", (1, 2, 4, 3), 2, 12, 68),
    "two rows a group": ("float16", (2, 2, 3, 1), 5, 5, 137),
    "a warp without a part": ("float32", (2, 1, 7, 5), 1, 4, 8),
}


@cache
def meant() -> Any:
    return translation(instructions())


def run(dtype: str, form: tuple[int, ...], processors: int, rows: int, pieces: int, seed: int) -> tuple[float, bool]:
    """The worst error of a launch in its bound, and whether scratch is 0 behind it."""
    meanings, stream_module, streams = meant(), module("softmax.stream"), module("softmax.plan")
    stream = streams.Stream(*form)
    share = streams.shared_by(rows, pieces * 16, stream, processors)
    columns, drawn = pieces * (4 if dtype == "float32" else 8), torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=drawn).to(getattr(torch, dtype))
    x[-1] = -torch.inf
    x[-1, 5] = 2
    out, scratch = torch.full_like(x, torch.nan), torch.zeros(share.scratch_bytes(stream), dtype=torch.uint8)
    kernel = stream_module.stream_kernel.__wrapped__(dtype, stream, -(-share.blocks // 32))
    grid, sizes = (share.blocks, share.groups), (rows, columns, share.part)
    machine = AllAtOnce(grid, kernel.threads, kernel.dynamic_shared, Memory([x, out, scratch]), seed)
    arguments = tuple(np.int64(value) for value in (x.data_ptr(), out.data_ptr(), *sizes, scratch.data_ptr()))
    numba_on_cpu.run(kernel.function, machine, arguments, meanings)
    return worst_error(out, Workload("softmax", (rows, columns), dtype), x), not bool(scratch.any())


@pytest.mark.parametrize("name", CASES)
def test_a_stream_is_right_whatever_comes_first(name: str) -> None:
    for seed in (1, 2):
        error, clean = run(*CASES[name], seed)
        assert error <= 1
        assert clean


def test_places_for_fewer_rows_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """What softmax/stream.py says of how many rows must be kept is not more than is needed to be seen here."""
    stream = module("softmax.plan").Stream
    monkeypatch.setattr(stream, "pairs_kept", 1)
    with pytest.raises(Fault, match="wait for ever"):
        run(*CASES["more turns than places"], 1)
