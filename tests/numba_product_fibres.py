"""Hopper's products in fibres: what wgmma and boxes of tensor maps mean, beside numba_stream_fibres.py's barriers.

Stricter than a GPU where it can be: a product reads shared memory as late as it may, when it is waited for; what a box goes to is gone as
soon as it is asked for, and comes late; a box's bytes are those that its map says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fibres import NAN_BYTE, SHARED_BASE, Fault, Memory
from greenlet import getcurrent
from numba_stream_fibres import AllAtOnce, Barrier

u32, f32 = np.uint32, np.float32
BARS = 128  # threads at a named barrier


@dataclass
class Map:
    """A matrix of 16-bit elements, and its boxes, with rows of 128 bytes."""

    elements: np.ndarray[Any, Any]
    rows: int
    columns: int = 64


class Boxes(AllAtOnce):
    def __init__(self, grid: int, threads: int, shared: int, memory: Memory, seed: int) -> None:
        super().__init__((grid, 1), threads, shared, memory, seed)
        self.stores: dict[Any, int] = {}  # of a thread, that have not left shared memory
        self.bars: dict[Any, int] = {}  # arrivals at a named barrier of a block


def swizzled(offsets: Any) -> Any:
    """Where the byte lies that unswizzled would lie there: chunks of 16 bytes change places by the row of 128 bytes, modulo 8."""
    return offsets ^ (offsets >> 7 & 7) << 4


def instructions(machine: Callable[[], Boxes], narrow: Callable[..., Any], widen: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    """Module of numba_cuda -> name there -> its meaning on the machine of the launch under way."""

    def place(address: Any) -> int:
        return int(address) - SHARED_BASE

    def shared(address: Any, size: int) -> Any:
        at, memory = place(address), getcurrent().block.memory
        if at % size or at < 0 or at + size > memory.size:
            raise Fault(f"{size} bytes at {at} of {memory.size} of dynamic shared memory")
        return memory[at : at + size]

    def barrier(address: Any) -> Barrier:
        return getcurrent().block.barriers[place(address)]

    def barrier_init(address: Any, count: Any) -> None:
        shared(address, 8)
        getcurrent().block.barriers[place(address)] = Barrier(int(count), int(count))

    def expect(address: Any, size: Any) -> None:
        barrier(address).copied += int(size)
        barrier(address).arrive()

    def wait(address: Any, parity: Any) -> None:
        one = barrier(address)
        machine().until(lambda: one.phase % 2 != int(parity))

    def land_later(one: Barrier, count: int, act: Callable[[], None]) -> None:
        def land() -> None:
            act()
            one.copied -= count
            one.turn()

        machine().copies.append(land)

    def lines(memory: Any, at: int, rows: int) -> Any:
        """Indices of the bytes of a box at that place, row by row."""
        if at % 1024 or at < 0 or at + rows * 128 > min(getcurrent().block.barriers):
            raise Fault(f"a box of {rows} rows at {at}")
        return swizzled(at + np.arange(rows * 128)).reshape(rows, 128)

    def box_load(to: Any, matrix: Map, column: Any, row: Any, address: Any) -> None:
        memory, column, row = getcurrent().block.memory, int(column), int(row)
        indices = lines(memory, place(to), matrix.rows)
        memory[indices] = NAN_BYTE
        box = np.zeros((matrix.rows, matrix.columns), np.uint16)
        inside = matrix.elements[row : row + matrix.rows, column : column + matrix.columns]
        box[: inside.shape[0], : inside.shape[1]] = inside

        def act() -> None:
            memory[indices] = box.view(np.uint8)

        land_later(barrier(address), matrix.rows * 128, act)

    def box_store(matrix: Map, column: Any, row: Any, source: Any) -> None:
        memory, column, row, thread = getcurrent().block.memory, int(column), int(row), getcurrent()
        indices = lines(memory, place(source), matrix.rows)
        machine().stores[thread] = machine().stores.get(thread, 0) + 1

        def land() -> None:
            to = matrix.elements[row : row + matrix.rows, column : column + matrix.columns]
            to[:] = np.ascontiguousarray(memory[indices]).view(np.uint16)[: to.shape[0], : to.shape[1]]
            machine().stores[thread] -= 1

        machine().copies.append(land)

    def boxes_wait(left: int) -> Callable[[], None]:
        def wait() -> None:
            thread = getcurrent()
            machine().until(lambda: machine().stores.get(thread, 0) <= left)

        return wait

    def bar(number: Any) -> None:
        key = id(getcurrent().block), int(number)
        machine().bars[key] = machine().bars.get(key, 0) + 1
        turn = -(-machine().bars[key] // BARS) * BARS
        machine().until(lambda: machine().bars[key] >= turn)

    # ---- products ------------------------------------------------------------------------------------------------------------------

    def elements(block: Any, start: int, apart: int, along: str, across: int) -> Any:
        """Of a factor at `start`, `across` rows or columns by 16 of k, as a matrix across x 16. along: does it lie by k ("0") or across?"""
        i, k = np.arange(across)[:, None], np.arange(16)[None, :]
        if along == "0":
            offsets = start + i // 8 * 1024 + i % 8 * 128 + 2 * k
        else:
            offsets = start + i // 64 * apart + k // 8 * 1024 + k % 8 * 128 + i % 64 * 2
        offsets = swizzled(offsets) - SHARED_BASE
        return block.memory[offsets].astype(np.uint16) | block.memory[offsets + 1].astype(np.uint16) << 8

    def products(dtype: str, columns: int, left: Sequence[int], right: Sequence[int], apart: int, along: str) -> Callable[..., None]:
        of_a, of_b = along.split(", ")

        def floats(bits: Any) -> Any:
            return widen(np.ascontiguousarray(bits).view(np.uint8), dtype).reshape(bits.shape).astype(np.float64)

        def late(brought: list[Any]) -> None:
            block, warp = brought[0][4].block, brought[0][4].thread // 32 % 4
            a, b, add = (int(brought[0][i]) for i in (1, 2, 3))
            if a >> 18 or b >> 18:
                raise Fault("a descriptor with bits of another field")
            total = np.zeros((16, columns))
            for from_a, from_b in zip(left, right, strict=True):
                A = floats(elements(block, a + from_a, 0, of_a, 64))[16 * warp : 16 * warp + 16]
                total += A @ floats(elements(block, b + from_b, apart, of_b, columns)).T
            for lane, (sums, *_) in enumerate(brought):
                for i in range(columns // 2):
                    row, column = lane // 4 + i // 2 % 2 * 8, i // 4 * 8 + lane % 4 * 2 + i % 2
                    sums[i] = f32(total[row, column] + (sums[i] if add else 0))

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

    def store_matrices(dtype: str, turned: bool = False) -> Callable[[Any, Any, int], None]:
        def act(brought: list[Any]) -> list[Any]:
            # Lane l holds of matrix i row l / 4, columns 2 (l % 4) and the next.
            words = np.stack([narrow(sums, dtype).view(np.uint16).reshape(4, 2) for _, sums in brought])  # lane, matrix, element
            for lane, (to, _) in enumerate(brought):
                matrix = np.ascontiguousarray(words[:, lane // 8]).reshape(8, 8)
                to.view(np.uint16)[:] = (matrix.T if turned else matrix)[lane % 8]
            return [0] * 32

        return lambda address, sums, at: machine().together("stmatrix", (shared(address, 16), sums[at : at + 8].copy()), act) and None

    def together(what: str, act: Callable[[list[Any]], list[Any]]) -> Callable[..., Any]:
        return lambda value=None: machine().together(what, value, act)

    return {
        "tensor": {"shared_address": lambda array: u32(SHARED_BASE)},
        "barrier_ptx": {
            "barrier_init": barrier_init,
            "barriers_publish": lambda: None,
            "expect": expect,
            "wait": wait,
            "arrive": lambda address: barrier(address).arrive(),
            "elected": together("elect", lambda lanes: [1] + [0] * 31),
            "same_in_warp": together("lane 0", lambda lanes: lanes[:1] * 32),
            "divide": lambda a, b: u32(int(a) // int(b)),
            "remainder": lambda a, b: u32(int(a) % int(b)),
        },
        "matmul_wgmma_ptx": {
            "_products": products,
            "finish": finish,
            "store_matrices": store_matrices,
            "box_load": box_load,
            "box_store": box_store,
            "boxes_wait_all": boxes_wait(0),
            "boxes_wait_but_one": boxes_wait(1),
            "publish_to_copies": lambda: None,
            "warpgroup_barrier": bar,
        },
    }
