"""numba_cuda's stream of long rows, in fibres: all blocks at once, in orders drawn by lot. Rows are as small as its waits allow."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

import numba_fibres
import numpy as np
import pytest
import torch
from fibres import Fault, Memory
from numba_fibres import in_fibres
from numba_stream_fibres import AllAtOnce, instructions
from support import ON_GPU, right_candidates, worst_error

from opwise.ops import Workload

pytestmark = pytest.mark.skipif(ON_GPU, reason="a GPU is here: it runs this kernel itself")
PACKAGE = "opwise.backends.numba_cuda"
MAIN = [c for c in right_candidates() if (c.backend, c.op, c.variant) == ("numba_cuda", "softmax", "")]
# dtype, warps, pieces of a lane, stages, lag, SMs; rows, 16-byte pieces of a row.
CASES = {
    "several blocks and groups": ("float32", (2, 1, 4, 2), 5, 9, 127),
    "more turns than places": ("bfloat16", (1, 2, 4, 3), 2, 12, 68),
    "two rows a group": ("float16", (2, 2, 3, 1), 5, 5, 137),
    "a warp without a part": ("float32", (2, 1, 7, 5), 1, 4, 8),
}


@contextmanager
def played() -> Iterator[None]:
    for candidate in MAIN:
        candidate.get()  # where there is no GPU, the backend asks for Numba's simulator
    with in_fibres(), pytest.MonkeyPatch.context() as patch:
        for name, meanings in instructions(lambda: numba_fibres.Now.machine).items():
            for instruction, meaning in meanings.items():
                patch.setattr(importlib.import_module(f"{PACKAGE}.{name}"), instruction, meaning)
        yield


def run(dtype: str, form: tuple[int, ...], processors: int, rows: int, pieces: int, seed: int) -> tuple[float, bool]:
    """The worst error of a launch in its bound, and whether scratch is 0 behind it."""
    stream_module, streams = (importlib.import_module(f"{PACKAGE}.{name}") for name in ("softmax.stream", "softmax.plan"))
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba_fibres.Now, "machine", machine, raising=False)
        for name in ("softmax.stream", "common.reduce"):
            patch.setattr(importlib.import_module(f"{PACKAGE}.{name}"), "cuda", machine)
        machine.run(kernel.function, tuple(np.int64(value) for value in (x.data_ptr(), out.data_ptr(), *sizes, scratch.data_ptr())))
    return worst_error(out, Workload("softmax", (rows, columns), dtype), x), not bool(scratch.any())


@pytest.mark.parametrize("name", CASES)
def test_a_stream_is_right_whatever_comes_first(name: str) -> None:
    with played():
        for seed in (1, 2):
            error, clean = run(*CASES[name], seed)
            assert error <= 1
            assert clean


def test_places_for_fewer_rows_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """What softmax/stream.py says of how many rows must be kept is not more than is needed to be seen here."""
    with played():
        stream = importlib.import_module(f"{PACKAGE}.softmax.plan").Stream
        monkeypatch.setattr(stream, "pairs_kept", 1)
        with pytest.raises(Fault, match="wait for ever"):
            run(*CASES["more turns than places"], 1)
