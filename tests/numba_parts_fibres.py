"""Numba's products for any GPU whose blocks share K, in fibres: a cluster's barriers and memory (numba_product_fibres.py) beside cp.async
and mma.sync (numba_fibres_tensor.py), all blocks at once, their warps in an order drawn by lot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba_fibres
import numpy as np
import pytest
import torch
from fibres import Collective, Memory, shared_bytes
from greenlet import getcurrent
from numba_fibres_tensor import fma_multiplier, tensor_instructions
from numba_product_fibres import Clusters, instructions, module, simulator_or_skip

MODULES = ("matmul.kernels.fma", "matmul.kernels.mma_sync", "matmul.kernels.cluster_reduce")
f32 = np.float32


class Sharers(Clusters):
    _acting: Any = None

    @property
    def queues(self) -> dict[int, Any]:
        """A block's copies, thread by thread."""
        found: dict[int, Any] = getcurrent().block.__dict__.setdefault("queues", {})
        return found

    @property
    def dynamic(self) -> Any:
        """Of the thread's block; where a warp acts as one, of the block whose it is."""
        return getattr(getcurrent(), "block", self._acting).memory

    def together(self, what: str, brings: Any, act: Collective) -> Any:
        block = getcurrent().block

        def of_block(lanes: list[Any]) -> list[Any]:
            self._acting = block
            return act(lanes)

        return super().together(what, brings, of_block)


@contextmanager
def played() -> Iterator[None]:
    """The kernels' instructions as what they mean. A kernel must be made within, and not by way of a cache."""
    simulator_or_skip()
    now = lambda: numba_fibres.Now.machine  # noqa: E731
    rounding = numba_fibres.from_float32, numba_fibres.to_float32
    of_clusters, of_tensor = instructions(now, *rounding), tensor_instructions(now, *rounding)

    def store_floats(address: Any, values: Any, at: int) -> None:
        shared_bytes(now().dynamic, address, 16).view(f32)[:] = values[at : at + 4]

    meanings = {
        "common.words": of_clusters["common.words"] | {"copies_done": of_tensor["wait_for_all_but"](0)},
        "matmul.kernels.cluster_reduce": of_clusters["matmul.kernels.cluster_reduce"] | {"store_floats": store_floats},
        "matmul.kernels.fma": {"multiplier": fma_multiplier(now)},
        "common.tensor": of_tensor,
    }
    ptx = module("common.ptx")
    with pytest.MonkeyPatch.context() as patch:
        for name, found in meanings.items():
            for instruction, meaning in found.items():
                patch.setattr(module(name), instruction, meaning)
        for dtype, wide in ptx.STORE:
            patch.setitem(ptx.STORE, (dtype, wide), numba_fibres.loads_and_stores(dtype, 16 if wide else ptx.BYTES[dtype])[1])
        yield


def product(tile: Any, kind: str, aligned: bool, a: torch.Tensor, b: torch.Tensor, seed: int) -> torch.Tensor:
    """Of one launch, a and b in memory as tile.layout says. kind: float32, tfloat32, float16 or bfloat16."""
    (m, k), n = a.shape, b.shape[1]
    out = torch.full((m, n), torch.nan, dtype=a.dtype)
    if kind == "float32":
        kernel = module("matmul.kernels.fma").fma_kernel.__wrapped__(tile, aligned)
    else:
        kernel = module("matmul.kernels.mma_sync").mma_kernel.__wrapped__(kind, tile, aligned)
    grid = -(-m // tile.rows) * -(-n // tile.columns) * tile.split
    machine = Sharers(grid, kernel.threads, kernel.dynamic_shared, Memory([a, b, out]), seed, kernel.cluster)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba_fibres.Now, "machine", machine, raising=False)
        for name in MODULES:
            patch.setattr(module(name), "cuda", machine)
        addresses = (np.int64(x.data_ptr()) for x in (a, b, out))
        machine.run(kernel.function, (*addresses, *(np.int64(size) for size in (m, n, k))))
    return out
