"""Split-K within a cluster (sm_90), for fma.py and mma_sync.py: partial sums are reduced through distributed shared memory.

Each of S blocks multiplies its part of K and writes its sums to its own shared memory, reusing the ring. After a cluster barrier each block
reads the units that it owns from all S blocks in rank order, adds them and stores the result. There is no global workspace, and results are
deterministic. A unit is four sums of one thread; each block owns a contiguous 1/S of all units.
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


publish = instruction("barrier.cluster.arrive.release.aligned;", words.void, effect=True, together=True)  # each thread's writes
load_there = quad_load("ld.shared::cluster.v4.f32 {$0, $1, $2, $3}, [$4];")  # from any block of the cluster


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def store_floats(typing: Any, address: Any, buffer: Any, at: Any) -> Any:
    """buffer[at:at + 4] to a shared address (a multiple of 16) of this block."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = [builder.load(element(context, builder, signature.args[1], args[1], args[2], k)) for k in range(4)]
        assembly(builder, ir.VoidType(), "st.shared.v4.f32 [$0], {$1, $2, $3, $4};", "r,f,f,f,f", [args[0], *values], effect=True)
        return context.get_dummy_value()

    return types.void(types.uint32, buffer, types.int64), codegen


class ClusterReduce(NamedTuple):
    """The device functions of a kernel with S blocks a tile. `each`: units that a thread stores; `room`: size of `parts`, in floats.

    share_of(steps) -> (first, count): this block's steps of K; count may be 0.
    add_up(shared, sums, parts, thread): a cluster barrier, so all threads call it; it leaves unit i in parts[4 * S * i:][:4].
    owned(thread, i) -> (unit, the thread that computed it); unit is `units` where this thread has none.
    leave(): all threads call it last; it keeps the block's shared memory alive until the whole cluster has read it.
    """

    each: int
    room: int
    share_of: Any
    add_up: Any
    owned: Any
    leave: Any


@cache
def cluster_reduce(split: int, threads: int, units: int) -> ClusterReduce:
    """units: of a thread; `shared`: 16-byte aligned. Raises ValueError unless threads, units are powers of two and split is in SPLITS."""
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
        cuda.syncthreads()  # all threads have finished reading the ring, and no copy into it is in flight
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
        cuda.syncwarp()  # .aligned: the whole warp must arrive together
        publish()  # the reads are complete: `leave` waits for this arrival of all blocks

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
    """A block's dynamic shared memory, in bytes: of the ring, or of its sums where K is split and they need more."""
    return max(ring, threads * units * UNIT) if split > 1 else ring
