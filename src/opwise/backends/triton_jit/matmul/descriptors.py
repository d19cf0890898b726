"""Products through tensor maps (TMA): which maps a kernel takes, how they are encoded, and its launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from opwise.backends.protocol import Bind, Launch
from opwise.backends.triton_jit.common.clusters import in_clusters
from opwise.backends.triton_jit.common.launch import Grid, built
from opwise.backends.triton_jit.common.specimen import POINTERS, Specimen

# Triton 3.7 has an option for maps that round to TF32 on copy. Before, maps are encoded from the compiled kernel's metadata (round_maps).
ROUNDS = "round_f32_to_tf32" in TensorDescriptor.__dataclass_fields__
TFLOAT32 = 11  # cuda.h's CU_TENSOR_MAP_DATA_TYPE_TFLOAT32; FLOAT32 is 7


@dataclass(frozen=True)
class Product:
    """A kernel of (maps, [out], M, N, K) with its constexprs and compile options.

    maps: parameter -> its tensor ("a", "b" or "out"), the block (rows, columns) of one copy, and its layout in shared memory (Gluon's;
    None: Triton chooses). Without a map of "out" the kernel takes its pointer.
    rounds: maps of a and b round float32 to TF32. cluster: programs a tile, each a block of a thread block cluster.
    """

    kernel: Any
    maps: Mapping[str, tuple[str, list[int], Any]]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]
    rounds: bool = False
    cluster: int = 1

    @property
    def fixed(self) -> dict[str, Any]:
        return {**self.constants, **self.options}

    @property
    def stores_by_map(self) -> bool:
        return any(name == "out" for name, *_ in self.maps.values())

    def arguments(self, a: Tensor, b: Tensor, out: Tensor) -> tuple[Any, ...]:
        of, more = {"a": a, "b": b, "out": out}, {"round_f32_to_tf32": True} if self.rounds and ROUNDS else {}
        maps = tuple(_described(of[name], block, layout, more) for name, block, layout in self.maps.values())
        return (*maps, *(() if self.stores_by_map else (out,)), a.shape[0], b.shape[1], a.shape[1])


def _described(x: Tensor, block: list[int], layout: Any, more: Mapping[str, Any]) -> Any:
    x = x if x.is_contiguous() else x.t()  # as it lies in memory, as blocks do
    if layout is None:
        return TensorDescriptor(x, list(x.shape), [x.shape[1], 1], block)
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as LaidOut

    return LaidOut(x, list(x.shape), [x.shape[1], 1], block, layout, **more)


def build(product: Product, grid: Grid, a: Tensor, b: Tensor, out: Tensor) -> Bind:
    """grid: in programs, or in clusters: then the launcher multiplies x by the cluster size."""
    samples, fixed = product.arguments(a, b, out), product.fixed
    if product.cluster > 1 or (product.rounds and not ROUNDS):
        compiled = product.kernel.warmup(*samples, grid=grid, **fixed)  # the very kernel that `built` then finds compiled
        if product.cluster > 1:
            in_clusters(compiled, product.cluster)
        else:
            round_maps(compiled, len(product.maps))
    ready = built(product.kernel, grid, *samples, **fixed)

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return ready(*product.arguments(a, b, out))

    return bind


def round_maps(compiled: Any, count: int) -> None:
    """Makes all `count` maps round to TF32. Raises RuntimeError if this Triton's metadata does not hold their element types."""
    maps = getattr(compiled.metadata, "tensordesc_meta", None)
    if not maps or len(maps) != count or any("elem_type" not in each for each in maps):
        raise RuntimeError(
            f"Triton {triton.__version__} does not say how it encodes tensor maps, and would cut TF32 factors instead of rounding them: "
            "pip install 'triton>=3.6'"
        )
    for each in maps:
        each["elem_type"] = TFLOAT32


def specimen(product: Product, dtype: str) -> Specimen:
    element = POINTERS[dtype].removeprefix("*")
    types = {x: f"tensordesc<{element}{block}{f',{layout}' * (layout is not None)}>" for x, (_, block, layout) in product.maps.items()}
    if not product.stores_by_map:
        types["out"] = POINTERS[dtype]
    return Specimen(product.kernel, {**types, **dict.fromkeys("MNK", "i32")}, product.constants, product.options)


def dtype_of(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
