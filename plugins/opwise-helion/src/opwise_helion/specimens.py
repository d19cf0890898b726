"""What is compiled without a GPU: of each op and dtype, in sizes that tiles divide and that they do not, known and as arguments.

Tensors are made for their shapes; nothing touches their memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from opwise_helion import elementwise, gelu, matmul, mean, softmax, square
from opwise_helion.planning import Plan, Way, planned
from opwise_helion.tiles import tiles_of

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def of(op: str) -> Iterator[tuple[str, Plan]]:
    """Name -> plan, none for an op of a package."""
    if op in ("square", "gelu"):
        yield from _elementwise(square.square_kernel if op == "square" else gelu.gelu_kernel)
    elif op in _OF:
        yield from _OF[op]()


def _elementwise(kernel: elementwise.Kernel) -> Iterator[tuple[str, Plan]]:
    config = elementwise.config(*elementwise.WAYS[0])
    for name, dtype in DTYPES.items():
        for label, n, static in (("", 2**20, True), (", odd", 2**20 + 1, True), (", sized", 2**20, False), (", beyond 2^31", 2**31, True)):
            x = torch.empty(n, dtype=dtype)
            yield name + label, planned(Way(kernel, config, static), x, torch.empty_like(x))


def _mean() -> Iterator[tuple[str, Plan]]:
    first, (tile, _) = mean.first_of(*mean.WAYS[0]), mean.WAYS[0]
    for name, dtype in DTYPES.items():
        out = torch.empty(1, dtype=dtype)
        for n in (2**20, 2**20 + 1):
            yield f"{name}, {n}", planned(first, torch.empty(n, dtype=dtype), torch.empty(-(-n // tile)))
        yield f"{name}, sums", planned(mean.LAST, torch.empty(2**20 // tile), out, 2**20)
        yield f"{name}, alone", planned(mean.LAST, torch.empty(1000, dtype=dtype), out, 1000)


def _softmax() -> Iterator[tuple[str, Plan]]:
    held = softmax.HELD
    for name, dtype in DTYPES.items():
        for shape, static in (((4096, 256), True), ((583, 931), True), ((64, held), True), ((64, 2 * held), True), ((64, 4096), False)):
            x = torch.empty(shape, dtype=dtype)
            label = "x".join(map(str, shape)) + ("" if static else ", sized")
            yield f"{name}, {label}", planned(softmax.way_of(None, static, x), x, torch.empty_like(x))


def _matmul() -> Iterator[tuple[str, Plan]]:
    for name, dtype in {"tfloat32": torch.float32, **DTYPES}.items():
        tf32 = name == "tfloat32"
        tiles = tiles_of(dtype, tf32, 2**18)
        square_ones = [torch.empty(4096, 4096, dtype=dtype) for _ in "abc"]
        odd = [torch.empty(shape, dtype=dtype) for shape in ((583, 931), (931, 781), (583, 781))]
        for tile in tiles:
            given: list[Any] = [*square_ones, tf32]
            yield f"{name}, tile {'x'.join(map(str, tile[:3]))}", planned(matmul.way_of(tile, tf32), *given)
        for label, static in (("odd", True), ("sized", False)):
            yield f"{name}, {label}", planned(matmul.way_of(tiles[-2], tf32, static), *odd, tf32)


_OF = {"mean": _mean, "softmax": _softmax, "matmul": _matmul}
