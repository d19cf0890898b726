"""What wgmma and stmatrix do, in NumPy: 16 rows of a product by a warp, from where its descriptors say, as late as it may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from greenlet import getcurrent

from opwise.backends.numba_on_cpu.fibres import SHARED_BASE, Fault, Machine

Shared = Callable[[Any, int], Any]  # address, bytes -> these bytes of shared memory


def swizzled(offsets: Any) -> Any:
    """Where the byte lies that unswizzled would lie there: chunks of 16 bytes change places by the row of 128 bytes, modulo 8."""
    return offsets ^ (offsets >> 7 & 7) << 4


def wgmma_instructions(
    machine: Callable[[], Machine], shared: Shared, narrow: Callable[..., Any], widen: Callable[..., Any]
) -> dict[str, Callable[..., Any]]:
    """Name in wgmma_ptx.py -> its meaning on the machine of the launch under way. narrow, widen: bytes of a dtype from and to
    float32."""

    def elements(block: Any, start: int, apart: int | None, across: int) -> Any:
        """Of a factor at `start`, `across` rows or columns by 16 of k, as a matrix across x 16. Where `apart` is None it lies by k."""
        i, k = np.arange(across)[:, None], np.arange(16)[None, :]
        if apart is None:
            offsets = start + i // 8 * 1024 + i % 8 * 128 + 2 * k
        else:
            offsets = start + i // 64 * apart + k // 8 * 1024 + k % 8 * 128 + i % 64 * 2
        offsets = swizzled(offsets) - SHARED_BASE
        return block.memory[offsets].astype(np.uint16) | block.memory[offsets + 1].astype(np.uint16) << 8

    def products(dtype: str, columns: int, left: Sequence[int], right: Sequence[int], apart: int) -> Callable[..., None]:
        def floats(bits: Any) -> Any:
            return widen(np.ascontiguousarray(bits).view(np.uint8), dtype).reshape(bits.shape).astype(np.float64)

        def late(brought: list[Any]) -> None:
            block, warp = brought[0][4].block, brought[0][4].thread // 32 % 4
            a, b, add = (int(brought[0][i]) for i in (1, 2, 3))
            if a >> 18 or b >> 18:
                raise Fault("a descriptor with bits of another field")
            total = np.zeros((16, columns))
            for from_a, from_b in zip(left, right, strict=True):
                A = floats(elements(block, a + from_a, None, 64))[16 * warp : 16 * warp + 16]
                total += A @ floats(elements(block, b + from_b, apart, columns)).T
            i = np.arange(columns // 2)
            for lane, (sums, *_) in enumerate(brought):
                mine = total[lane // 4 + i // 2 % 2 * 8, i // 4 * 8 + lane % 4 * 2 + i % 2]
                sums[: i.size] = mine + sums[: i.size] if add else mine

        def begin(brought: list[Any]) -> list[Any]:
            done(brought)
            brought[0][4].pending = lambda: late(brought)
            return [0] * 32

        def multiply(sums: Any, a: Any, b: Any, add: Any) -> None:
            machine().together("wgmma", (sums, a, b, add, getcurrent()), begin)

        return multiply

    def done(brought: list[Any]) -> list[Any]:
        first = brought[0][4]
        if getattr(first, "pending", None) is not None:
            first.pending()
        first.pending = None
        return [0] * 32

    def finish(columns: int) -> Callable[[Any], None]:
        return lambda sums: machine().together("wgmma.wait", (sums, 0, 0, 0, getcurrent()), done) and None

    def store_matrices(dtype: str) -> Callable[[Any, Any, int], None]:
        def act(brought: list[Any]) -> list[Any]:
            # Lane l holds of matrix i row l / 4, columns 2 (l % 4) and the next.
            words = np.stack([narrow(sums, dtype).view(np.uint16).reshape(4, 2) for _, sums in brought])  # lane, matrix, element
            for lane, (to, _) in enumerate(brought):
                matrix = np.ascontiguousarray(words[:, lane // 8]).reshape(8, 8)
                to.view(np.uint16)[:] = matrix[lane % 8]
            return [0] * 32

        return lambda address, sums, at: machine().together("stmatrix", (shared(address, 16), sums[at : at + 8].copy()), act) and None

    return {"_products": products, "finish": finish, "store_matrices": store_matrices}
