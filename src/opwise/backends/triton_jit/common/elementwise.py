"""Builds for square and gelu: a program computes one block of elements; the last block is masked."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from opwise.backends.protocol import Bind, Build, Launch
from opwise.backends.triton_jit.common.launch import built_of_one, called
from opwise.backends.triton_jit.common.specimen import POINTERS, Specimen

# No fusion of x * y + z into an FMA: Triton's default differs between versions, and so would results.
OPTIONS: dict[str, Any] = {"enable_fp_fusion": False, "num_stages": 1}


UNALIGNED = (1024, 4)  # elements, warps. Accesses are scalar: more of them a thread cost registers and gain nothing


def _aligned(*tensors: Tensor) -> bool:
    return all(x.data_ptr() % 16 == 0 for x in tensors)


def build_with(kernel: Any, blocks: dict[int, tuple[int, int]], options: dict[str, Any] = OPTIONS) -> Build:
    """The build of `kernel(x, out, n, BLOCK, WIDE)`. blocks: bytes of an element -> (elements, warps) of a program."""

    def build(x: Tensor, out: Tensor) -> Bind:
        n = x.numel()
        block, warps = blocks[x.element_size()] if _aligned(x, out) else UNALIGNED
        grid = (-(-n // block), 1, 1)
        return built_of_one(kernel, grid, x, out, n, BLOCK=block, WIDE=n > 2**31 - 2 * block, num_warps=warps, **options)

    return build


PLAIN_BLOCK = 1024


def plain_with(kernel: Any) -> Build:
    """The build of `kernel(x, out, n, BLOCK)`, launched as `kernel[grid](...)`."""

    def build(x: Tensor, out: Tensor) -> Bind:
        def bind(x: Tensor, out: Tensor) -> Launch:
            return called(kernel, (-(-x.numel() // PLAIN_BLOCK), 1, 1), x, out, x.numel(), BLOCK=PLAIN_BLOCK)

        return bind

    return build


def plain_specimens(kernel: Any) -> dict[str, Specimen]:
    types = {d: {"x": POINTERS[d], "out": POINTERS[d], "n": "i32"} for d in ("float32", "float16", "bfloat16")}
    return {f"plain, {d}": Specimen(kernel, types[d], {"BLOCK": PLAIN_BLOCK}) for d in types}


def specimens_of(kernel: Any, blocks: dict[int, tuple[int, int]], options: dict[str, Any] = OPTIONS) -> dict[str, Specimen]:
    found: dict[str, Specimen] = {}
    for dtype in ("float32", "float16", "bfloat16"):
        for label, n, odd in (("", "i32", ()), (", unaligned", "i32", ("x", "out", "n")), (", beyond 2^31", "i64", ())):
            types = {"x": POINTERS[dtype], "out": POINTERS[dtype], "n": n}
            block, warps = UNALIGNED if odd else blocks[4 if dtype == "float32" else 2]
            constants = {"BLOCK": block, "WIDE": n == "i64"}
            found[dtype + label] = Specimen(kernel, types, constants, {"num_warps": warps, **options}, odd)
    return found
