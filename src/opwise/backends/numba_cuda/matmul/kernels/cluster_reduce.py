"""Split-K by the blocks of a cluster (sm_90), for fma.py and mma_sync.py: partial sums are added through distributed shared memory.

Each of S blocks has multiplied a part of K. It leaves its sums in its own shared memory, over the ring, and all of the cluster meet. Then
each block reads the units that it owns from all S blocks, in the order of their ranks, adds them up and stores them. Nothing is written
but C, and a sum is the same in every run. A unit is four sums of a thread; of all units a block owns S-th parts, side by side.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from opwise.backends.numba_cuda.common import words
from opwise.backends.numba_cuda.common.compiler import cuda, int64, intrinsic, ir, types, uint32
from opwise.backends.numba_cuda.common.launch import inlined
from opwise.backends.numba_cuda.common.ptx import FLOAT, assembly, element, instruction
from opwise.backends.numba_cuda.matmul.configurations import SPLITS

UNIT = 16  # bytes


def quad_load(text: str) -> Any:
    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def load(typing: Any, address: Any, buffer: Any, at: Any) -> Any:
        """Four float32 at a shared address (a multiple of 16) to buffer[at:at + 4]."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values = assembly(builder, ir.LiteralStructType([FLOAT] * 4), text, "=f,=f,=f,=f,r", [args[0]], effect=True)
            for k in range(4):
                builder.store(builder.extract_value(values, k), element(context, builder, signature.args[1], args[1], args[2], k))
            return context.get_dummy_value()

        return types.void(types.uint32, buffer, types.int64), codegen

    return load


publish = instruction("barrier.cluster.arrive.release.aligned;", words.void, effect=True, together=True)  # what every thread wrote
load_there = quad_load("ld.shared::cluster.v4.f32 {$0, $1, $2, $3}, [$4];")  # of any block of the cluster


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def store_floats(typing: Any, address: Any, buffer: Any, at: Any) -> Any:
    """buffer[at:at + 4] to a shared address (a multiple of 16) of this block."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = [builder.load(element(context, builder, signature.args[1], args[1], args[2], k)) for k in range(4)]
        assembly(builder, ir.VoidType(), "st.shared.v4.f32 [$0], {$1, $2, $3, $4};", "r,f,f,f,f", [args[0], *values], effect=True)
        return context.get_dummy_value()

    return types.void(types.uint32, buffer, types.int64), codegen


class ClusterReduce(NamedTuple):
    """What a kernel of S blocks a tile calls. `each`: units that a thread stores; `room`: floats that it needs for them and their parts.

    share_of(steps) -> this block's first step and how many it has, maybe none.
    add_up(shared, sums, parts, thread): meets the cluster, so all threads call it; unit i is in parts[4 * S * i:][:4] afterwards.
    owned(thread, i) -> the unit and the thread whose it was; the unit is `units` where this thread has none.
    leave(): all threads call it at the end; a block stays until all of the cluster have read its sums.
    """

    each: int
    room: int
    share_of: Any
    add_up: Any
    owned: Any
    leave: Any


@cache
def cluster_reduce(split: int, threads: int, units: int) -> ClusterReduce:
    """Of `units` units a thread. shared: at least `shared_bytes` of it, on 16 bytes. Raises ValueError for what is no power of two."""
    if split not in SPLITS or threads & (threads - 1) or units & (units - 1):
        raise ValueError(f"{split} blocks of {threads} threads with {units} units each: powers of two are taken, of blocks at most 16")
    owned_units = threads * units // split  # of a block
    each, owners = max(owned_units // threads, 1), min(owned_units, threads)
    shift, in_turn = split.bit_length() - 1, threads.bit_length() - 1

    @inlined
    def share_of(steps: Any) -> Any:
        rank = int64(words.rank_in_cluster())
        first = (steps * rank) >> shift
        return first, ((steps * (rank + 1)) >> shift) - first

    @inlined
    def add_up(shared: Any, sums: Any, parts: Any, thread: Any) -> None:
        words.copies_done()
        cuda.syncthreads()  # everybody has left the ring, and no copy will fill it
        for u in range(units):
            store_floats(shared + uint32((u * threads + thread) * UNIT), sums, 4 * u)
        publish()
        words.cluster_wait()
        if thread < owners:
            first = int64(words.rank_in_cluster()) * owned_units + thread
            for i in range(each):
                place = shared + uint32((first + i * threads) * UNIT)
                for s in range(split):
                    load_there(words.of_block(place, uint32(s)), parts, 4 * (i * split + s))
            for i in range(each):
                for s in range(1, split):
                    for e in range(4):
                        parts[4 * i * split + e] += parts[4 * (i * split + s) + e]
        cuda.syncwarp()  # a warp meets the others as one
        publish()  # what was read has come: whose it was may end once all say so

    @inlined
    def owned(thread: Any, i: Any) -> Any:
        at = int64(words.rank_in_cluster()) * owned_units + i * threads + thread
        return at >> in_turn if thread < owners else int64(units), at & (threads - 1)

    @inlined
    def leave() -> None:
        cuda.syncwarp()
        words.cluster_wait()

    return ClusterReduce(each, 4 * each * split, share_of, add_up, owned, leave)


def shared_bytes(ring: int, split: int, threads: int, units: int) -> int:
    """Of a block: the ring's, or its sums' where those are more and leave the block."""
    return max(ring, threads * units * UNIT) if split > 1 else ring
