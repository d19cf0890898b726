"""Split-K matmul for products of few tiles (sm_90a only), 16-bit factors: the S blocks of a cluster share a tile's K.

Each block multiplies K / S of the tile with TMA and wgmma, as wgmma.py does. Each unit (16 x 16) of the tile has an owner block of rank r.
A warp keeps the units that its block owns in registers and sends the others to their owners' inboxes with st.async. The inbox is separate
from the ring, so senders need not wait for the owner to finish its ring. The owner adds the parts of ranks r + 1, r + 2, ... (modulo S) to
its own and stores the unit. There is no global workspace, and results are deterministic.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from opwise.backends.cuda_src.plan import Matrix
from opwise.backends.numba_cuda.common import barrier as barriers
from opwise.backends.numba_cuda.common import tensor, words
from opwise.backends.numba_cuda.common.compiler import cuda, float32, int64, intrinsic, ir, types, uint32
from opwise.backends.numba_cuda.common.dtypes import f32
from opwise.backends.numba_cuda.common.launch import Kernel, inlined
from opwise.backends.numba_cuda.common.ptx import assembly, element, instruction
from opwise.backends.numba_cuda.matmul.configurations import HopperTile
from opwise.backends.numba_cuda.matmul.kernels import wgmma_ptx as ptx
from opwise.backends.numba_cuda.matmul.kernels.pipeline import position_of, prepare, ring_begins, tiling_of
from opwise.backends.numba_cuda.matmul.kernels.wgmma_ptx import BOX

OWN_SHARED = 0x3FFFF  # mask: offset within the block, without the cluster rank in the upper bits
UNIT = 1024  # bytes of 16 x 16 float32 sums, 8 registers a thread of one warp
BOX_COLUMNS = 64  # of B in a TMA box
ZERO = f32(0.0)
exchange = instruction(  # with lane ^ mask
    "shfl.sync.bfly.b32 $0, $1, $2, 31, 0xffffffff;", types.uint32, types.uint32, types.uint32, effect=True, together=True
)


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def st_async(typing: Any, there: Any, sums: Any, at: Any, barrier: Any) -> Any:
    """Asynchronous store of sums[at:at + 4] to 16 bytes of another block's shared memory; that block's mbarrier counts the bytes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        floats = [builder.load(element(context, builder, signature.args[1], args[1], args[2], i)) for i in range(4)]
        text = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [$0], {$2, $3, $4, $5}, [$1];"
        assembly(builder, ir.VoidType(), text, "r,r,f,f,f,f", [args[0], args[3], *floats], effect=True)
        return context.get_dummy_value()

    return types.void(types.uint32, sums, types.int64, types.uint32), codegen


@inlined
def landing(m: Any, rows: Any, stage_bytes: Any, boxes_a: Any) -> Any:
    """Bytes that a step's TMA copies transfer: A's boxes have min(m, rows) rows. Rows beyond m hold stale data; their sums stay unused."""
    if m < rows:
        return uint32(stage_bytes - (rows - m) * 128 * boxes_a)
    return uint32(stage_bytes)


@inlined
def swap(words: Any, low: Any, high: Any, mask: Any, t: Any) -> None:
    """Lanes t and t ^ mask exchange a word: the even one's words[high] for the odd one's words[low]. t: lane modulo 4."""
    odd = (t & uint32(mask)) != 0
    got = exchange(words[low] if odd else words[high], uint32(mask))
    words[low] = got if odd else words[low]
    words[high] = words[high] if odd else got


@cache
def storing(dtype: str) -> Any:
    """Device function (c, m, n, row, column, sums, packed, lane): a warp stores its unit, sums[0:8], to C at (row, column), clipped to
    (m, n); n is a multiple of 8. packed: scratch of four uint32.

    With g = lane / 4, t = lane % 4 a lane holds columns 2t, 2t + 1 of rows g and g + 8 of each 8-column half. A 4 x 4 transpose among the
    four lanes of g gives each lane 8 columns of one row, a 16-byte store.
    """
    pack = words.PACK_WORDS[dtype]

    @inlined
    def store_unit(c: Any, m: Any, n: Any, row: Any, column: Any, sums: Any, packed: Any, lane: Any) -> None:
        t = uint32(lane & uint32(3))
        pack(sums, packed, 0)
        swap(packed, 0, 1, 1, t)
        swap(packed, 2, 3, 1, t)
        swap(packed, 0, 2, 2, t)
        swap(packed, 1, 3, 2, t)
        to_row = int64(row) + int64(uint32(lane >> uint32(2)) + uint32(uint32(t & uint32(1)) * uint32(8)))
        to_column = int64(column) + int64(uint32(t >> uint32(1)) * uint32(8))
        if to_row < m and to_column < n:
            words.store_words(c + (to_row * n + to_column) * 2, packed, 0)

    return store_unit


def matrices(tile: HopperTile, m: int, k: int, n: int) -> tuple[Matrix, Matrix]:
    """The matrices to map. A's boxes have min(m, tile.rows) rows, as `landing` counts their bytes."""
    of_b = Matrix(n, k, tile.columns, 64) if tile.layout == "NT" else Matrix(k, n, tile.step_bytes // 2, 64)
    return Matrix(m, k, min(m, tile.rows), 64), of_b


@cache
def kernel(dtype: str, tile: HopperTile) -> Kernel:
    """Parameters: tensor maps of a (m, k) and b (k, n), with boxes of 64 columns by min(m, tile.rows) rows and by a step's k rows; c's
    address; m, n, k, each at most 2^30. With layout NT b's map is of (n, k), with boxes of tile.columns rows.

    Grid: tile.split blocks a tile. Raises ValueError unless the tile's rows and columns are multiples of 64.
    """
    rows, columns, stages, split, depth = tile.rows, tile.columns, tile.stages, tile.split, tile.step_bytes // 2
    if columns % BOX_COLUMNS or rows % 64:
        raise ValueError(f"{tile.name}: {rows} rows and {columns} columns given, multiples of 64 are taken: TMA copies boxes of 64")
    b_by_k = tile.layout == "NT"
    consumers, boxes_a = rows // 64, depth // 64
    boxes_b, lines_b = (boxes_a, columns) if b_by_k else (columns // BOX_COLUMNS, depth)
    box_a, box_b, warps = rows * 128, lines_b * 128, 4 * consumers
    bytes_a = boxes_a * box_a
    stage_bytes = bytes_a + boxes_b * box_b
    across = columns // 16  # units of a row
    owned, turns = -(-warps * across // split), across % split == 0  # most units of a block; does each warp have as many of every owner?
    multiply, finish, store_unit = ptx.step(dtype, columns, depth, rows, b_by_k), ptx.finish(columns), storing(dtype)
    position, tiling, sums_count = position_of(rows, columns), tiling_of(rows, columns), columns // 2
    groups, inbox_bytes = -(-across // split), tile.inbox

    def matmul(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any) -> None:
        sums, own, part = cuda.local.array(sums_count, float32), cuda.local.array(8, float32), cuda.local.array(8, float32)
        packed = cuda.local.array(4, uint32)
        # Shared memory: the ring, the inbox, the ring's mbarriers, then one mbarrier a warp for partial sums from other blocks.
        ring = ring_begins()
        inbox = uint32(ring + uint32(stages * stage_bytes))
        full = uint32(inbox + uint32(inbox_bytes))
        empty = uint32(full + uint32(8 * stages))
        thread = uint32(cuda.threadIdx.x)
        lane, warp = uint32(thread & uint32(31)), barriers.same_in_warp(uint32(thread >> uint32(5)))
        arrived = uint32(empty + uint32(8 * stages) + warp * uint32(8))
        if split > 1 and warp < warps and lane == 0:
            barriers.barrier_init(arrived, uint32(1))
            barriers.barriers_publish()
        prepare(full, stages, warps)  # one arrival a warp frees a stage
        if split > 1:
            words.cluster_arrive()
        rank = words.rank_in_cluster()
        tiles_m, tiles_n = tiling(m, n)
        row, column = position(barriers.divide(uint32(cuda.blockIdx.x), uint32(split)), tiles_m, tiles_n)
        steps = uint32((k + (depth - 1)) // depth)
        step = barriers.divide(uint32(steps * rank), uint32(split))
        last_step = barriers.divide(uint32(steps * (rank + uint32(1))), uint32(split))
        stage, phase = uint32(0), uint32(0)
        warpgroup = barriers.same_in_warp(uint32(thread >> uint32(7)))
        if warpgroup == consumers:
            if barriers.elected() != 0:
                bytes_ = landing(m, rows, stage_bytes, boxes_a)
                while step < last_step:
                    at, landed = uint32(ring + stage * uint32(stage_bytes)), uint32(full + stage * uint32(8))
                    of_k = uint32(step * uint32(depth))
                    barriers.wait(uint32(empty + stage * uint32(8)), uint32(phase ^ uint32(1)))
                    barriers.expect(landed, bytes_)
                    for box in range(boxes_a):
                        ptx.box_load(uint32(at + uint32(box * box_a)), a, uint32(of_k + uint32(64 * box)), row, landed)
                    for box in range(boxes_b):
                        to, further = uint32(at + uint32(bytes_a + box * box_b)), uint32(64 * box)
                        if b_by_k:
                            ptx.box_load(to, b, uint32(of_k + further), column, landed)
                        else:
                            ptx.box_load(to, b, uint32(column + further), of_k, landed)
                    step = uint32(step + uint32(1))
                    stage = uint32(stage + uint32(1))
                    if stage == stages:
                        stage, phase = uint32(0), uint32(phase ^ uint32(1))
            cuda.syncwarp()
            if split > 1:
                words.cluster_wait()
        else:
            # Unit u of the tile belongs to block u % split, at index u / split.
            first_unit = uint32(warp * uint32(across))
            first_place = barriers.divide(first_unit, uint32(split))
            first_owner = uint32(0) if turns else barriers.remainder(first_unit, uint32(split))
            if split > 1 and lane == 0:
                mine, owner = uint32(0), first_owner
                for _ in range(across):
                    mine = uint32(mine + uint32(1)) if owner == rank else mine
                    owner = uint32(owner + uint32(1)) if owner < split - 1 else uint32(0)
                # Parts may arrive before this: the phase completes after this arrival and all bytes, in either order.
                barriers.expect(arrived, uint32(mine * uint32((split - 1) * UNIT)))
            for i in range(sums_count):
                sums[i] = ZERO
            last, begun = uint32(0), uint32(0)
            while step < last_step:
                at = uint32(ring + stage * uint32(stage_bytes))
                barriers.wait(uint32(full + stage * uint32(8)), phase)
                # Clear the cluster rank in the address's upper byte: it would corrupt the leading offset in B's descriptor.
                at = uint32(at & uint32(OWN_SHARED))
                multiply(sums, uint32(at + warpgroup * uint32(BOX)), uint32(at + uint32(bytes_a)), uint32(1))
                if begun > 0 and lane == 0:
                    barriers.arrive(last)  # the step before this one has been multiplied: its stage may be filled again
                last = uint32(empty + stage * uint32(8))
                begun = uint32(1)
                step = uint32(step + uint32(1))
                stage = uint32(stage + uint32(1))
                if stage == stages:
                    stage, phase = uint32(0), uint32(phase ^ uint32(1))
            finish(sums)
            row = uint32(row + warp * uint32(16))
            if split == 1:
                for i in range(across):
                    for e in range(8):
                        own[e] = sums[8 * i + e]
                    store_unit(c, m, n, row, uint32(column + uint32(16 * i)), own, packed, lane)
            else:
                words.cluster_wait()  # all blocks have initialised their mbarriers
                owner, place = first_owner, first_place
                for i in range(across):
                    if owner != rank:
                        # An inbox has a slot for each sender: (rank - owner) modulo split, less 1.
                        room = uint32(rank - owner - uint32(1)) if rank > owner else uint32(rank + uint32(split - 1) - owner)
                        there = words.of_block(uint32(inbox + (room * uint32(owned) + place) * uint32(UNIT) + lane * uint32(16)), owner)
                        bell = words.of_block(arrived, owner)
                        st_async(there, sums, 8 * i, bell)
                        st_async(uint32(there + uint32(512)), sums, 8 * i + 4, bell)
                    owner = uint32(owner + uint32(1))
                    if owner == split:
                        owner, place = uint32(0), uint32(place + uint32(1))
                while words.pairs_arrived(arrived) == 0:
                    pass
                owner, place = first_owner, first_place
                for group in range(groups):  # of `split` consecutive units this block owns at most one
                    unit, here = uint32(across), place
                    for s in range(split):  # select it first, so that the code below is not unrolled for each
                        i = group * split + s
                        if i < across:
                            if owner == rank:
                                unit, here = uint32(i), place
                                for e in range(8):
                                    own[e] = sums[8 * i + e]
                            owner = uint32(owner + uint32(1))
                            if owner == split:
                                owner, place = uint32(0), uint32(place + uint32(1))
                    if unit < across:
                        came = uint32(inbox + here * uint32(UNIT) + lane * uint32(16))
                        for further in range(split - 1):
                            tensor.load_floats(uint32(came + uint32(further * owned * UNIT)), part, 0)
                            tensor.load_floats(uint32(came + uint32(further * owned * UNIT + 512)), part, 4)
                            for e in range(8):
                                own[e] += part[e]
                        store_unit(c, m, n, row, uint32(column + unit * uint32(16)), own, packed, lane)

    resident, shared_bytes = tile.ctas_per_sm, tile.shared_bytes
    return Kernel(matmul, (int64,) * 6, tile.threads, resident, dynamic_shared=shared_bytes, maps=2, only="sm_90", cluster=split)
