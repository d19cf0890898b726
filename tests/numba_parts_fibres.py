"""Numba's products for any GPU whose blocks share K, in fibres: a cluster's barriers and memory (numba_product_fibres.py) beside cp.async
and mma.sync, all blocks at once, their warps in an order drawn by lot.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from greenlet import getcurrent
from numba_product_fibres import Clusters, instructions, module, translation

from opwise.backends import numba_on_cpu
from opwise.backends.numba_on_cpu.fibres import Collective, Memory, shared_bytes
from opwise.backends.numba_on_cpu.meanings import SM80, machine

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


def meanings() -> dict[str, dict[str, Any]]:
    """Module of numba_cuda -> name there -> its meaning on the machine of the launch under way, which is of Sharers."""
    of_clusters = instructions()

    def store_floats(address: Any, values: Any, at: int) -> None:
        shared_bytes(machine().dynamic, address, 16).view(f32)[:] = values[at : at + 4]

    return {
        "common.words": of_clusters["common.words"] | {"copies_done": SM80["common.tensor"]["wait_for_all_but"](0)},
        "matmul.kernels.cluster_reduce": of_clusters["matmul.kernels.cluster_reduce"] | {"store_floats": store_floats},
    }


@cache
def meant() -> Any:
    return translation(meanings())


def product(tile: Any, kind: str, aligned: bool, a: torch.Tensor, b: torch.Tensor, seed: int) -> torch.Tensor:
    """Of one launch, a and b in memory as tile.layout says. kind: float32, tfloat32, float16 or bfloat16."""
    (m, k), n = a.shape, b.shape[1]
    out = torch.full((m, n), torch.nan, dtype=a.dtype)
    meant_by = meant()
    if kind == "float32":
        kernel = module("matmul.kernels.fma").fma_kernel(tile, aligned)
    else:
        kernel = module("matmul.kernels.mma_sync").mma_kernel(kind, tile, aligned)
    grid = -(-m // tile.rows) * -(-n // tile.columns) * tile.split
    launched = Sharers(grid, kernel.threads, kernel.dynamic_shared, Memory([a, b, out]), seed, kernel.cluster)
    numba_on_cpu.run(kernel.function, launched, tuple(np.int64(i) for i in (*(x.data_ptr() for x in (a, b, out)), m, n, k)), meant_by)
    return out
