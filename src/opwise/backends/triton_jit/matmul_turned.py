"""16-bit products on sm_90 by tiles turned round: C' = B' A', so that rows of C are wgmma's columns, which go by 16, and not by 64.

Tiles of 144 x 128 are 132 of 1536 cubed, just one wave; 192 x 128 make three full rounds of 3072 cubed. One wgmma has all of a tile's rows;
a tensor's sides are powers of two, so it is said in PTX, and the sums are slabs of 16 rows. A step's products are begun before those of
the step before are waited for. Copies and barriers are matmul_ring.py's: both warpgroups, 64 columns each, wait for copies and not for each
other.

    resident     as many programs as run at once, whose copies run ahead into the next tile while the last one's results are stored,
                 in PIECES rounds through what shared memory is left
    else         one tile a program; the results lie where the factors did

Nothing here runs in Triton's interpreter, which does not know Gluon.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from opwise.backends.protocol import Bind, Launch
from opwise.backends.triton_jit.launch import built, processors
from opwise.backends.triton_jit.matmul_config import GROUP, Config
from opwise.backends.triton_jit.matmul_ring import (
    SLACK,
    before,
    begin,
    copying,
    fill,
    first_lane,
    following,
    give_back,
)
from opwise.backends.triton_jit.matmul_roles import tile_at
from opwise.backends.triton_jit.matmul_warpgroup import BARRIER
from opwise.backends.triton_jit.ptx import arrived, shared_base, warp_of
from opwise.backends.triton_jit.specimen import POINTERS, Specimen


@gluon.constexpr_function
def step_of(rows: int, kind: Any) -> str:
    """PTX of 64 of K: four wgmma of 64 x rows x 16.

    Operands: the thread's rows / 2 sums, again as inputs, and each eight times over the low words of b's and of a's matrix descriptor and
    the step, of which the first begins with sums of zero. The high word of either descriptor: eight lines of 128 bytes take 1024, and are
    swizzled. b's columns lie side by side, and 16 of K are 16 lines, 2048 bytes; of a its k do, and 16 are 32 bytes. Units of 16 bytes.
    """
    count, kind = rows // 2, {"fp16": "f16"}.get(str(kind), str(kind))
    sums = ", ".join(f"${i}" for i in range(count))
    lines = [
        "{ .reg .pred more, always; .reg .b64 left, right; .reg .b32 l, r, high; mov.b32 high, 0x40000040;",
        f"setp.ne.s32 more, ${2 * count + 16}, 0; setp.eq.b32 always, high, high; wgmma.fence.sync.aligned;",
    ]
    for i in range(4):
        lines.append(f"add.u32 l, ${2 * count}, {128 * i}; add.u32 r, ${2 * count + 8}, {2 * i};")
        lines.append(f"mov.b64 left, {{l, high}}; mov.b64 right, {{r, high}}; wgmma.mma_async.sync.aligned.m64n{rows}k16.f32.{kind}.{kind}")
        lines.append(f"{{{sums}}}, left, right, {'always' if i else 'more'}, 1, 1, 1, 0;")
    return " ".join([*lines, "wgmma.commit_group.sync.aligned; }"])


@gluon.constexpr_function
def tied(rows: int) -> str:
    count = rows // 2
    return ",".join(["=f"] * count + [str(i) for i in range(count)] + ["r"] * 24)


@gluon.constexpr_function
def sums_of(slabs: int) -> tuple[Any, ...]:
    return (gl.float32,) * slabs


@gluon.constexpr_function
def copies_of() -> str:
    """a's first 128 rows and the others, of which there is a power of two, by a map each; b's columns by two boxes of one."""
    return copying("turned_kernel", ((0, 0, 0, 0), (5, 128 * 128, 0, 128)), ((10, 0, 0, 0), (10, 8192, 0, 64)))  # type: ignore[no-any-return]


@gluon.jit
def nothing(SLABS: gl.constexpr):  # type: ignore[no-untyped-def]
    """Sums of a tile: slabs of 16 of its rows, turned round."""
    total = ()
    for _ in gl.static_range(SLABS):
        total += (gl.zeros([128, 16], gl.float32, gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 16, 16])),)  # type: ignore[assignment]
    return total


@gluon.jit
def fetch(base, full, copier, program, row, column, step, stage, turn, M, N, K, BM: gl.constexpr, GROUP: gl.constexpr,
          STAGES: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Has a stage filled with a step of the program's tile, and goes on to the next, which may be of its next tile."""
    COPIES: gl.constexpr = copies_of()
    tiles = gl.cdiv(M, BM) * gl.cdiv(N, 128)
    fill(COPIES, base, base + BM * 128 * STAGES, full, gl.where(program < tiles, copier, 0), stage, turn, row, column, step * 64, BM * 128,
         128 * 128, STAGES)  # fmt: skip
    step += 1
    if step == gl.cdiv(K, 64):
        step = 0
        program += gl.num_programs(0)
        row, column = tile_at(gl.minimum(program, tiles - 1), M, N, BM, 128, GROUP)
    stage, turn = following(stage, turn, STAGES)
    return program, row, column, step, stage, turn


@gluon.jit
def products(stage, turn, f_program, f_row, f_column, f_step, f_stage, f_turn, base, full, warp, copier, speaker, M, N, K,
             kind: gl.constexpr, BM: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """A tile's sums; and where the ring is, and what is fetched next, f_."""
    STEP: gl.constexpr = step_of(BM, kind)
    TIED: gl.constexpr = tied(BM)
    left = (base + BM * 128 * STAGES + warp // 4 * 8192) // 16 + 8192 // 16 * 65536  # the next 64 columns, of which there are none
    right = base // 16
    none = gl.full([128, 16], 0, gl.int32, gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 16, 16]))
    total = nothing(BM // 16)
    for step in range(gl.cdiv(K, 64)):
        arrived(full + 8 * stage, turn)
        given = (none + (left + stage * (128 * 8)), none + (right + stage * (BM * 8)), none + step)
        total = gl.inline_asm_elementwise(STEP, TIED, total + given, dtype=sums_of(BM // 16), is_pure=False, pack=8)
        total = warpgroup_mma_wait(1, deps=total)
        give_back(full + 8 * (STAGES + before(stage, STAGES)), gl.where(step > 0, speaker, 0))  # the step before is done
        f_program, f_row, f_column, f_step, f_stage, f_turn = fetch(
            base, full, copier, f_program, f_row, f_column, f_step, f_stage, f_turn, M, N, K, BM, GROUP, STAGES
        )
        stage, turn = following(stage, turn, STAGES)
    total = warpgroup_mma_wait(0, deps=total)
    give_back(full + 8 * (STAGES + before(stage, STAGES)), speaker)
    return total, stage, turn, f_program, f_row, f_column, f_step, f_stage, f_turn


@gluon.jit
def places(kind: gl.constexpr, COUNT: gl.constexpr):  # type: ignore[no-untyped-def]
    """Shared memory for slabs of the results, each by itself: between stores to parts of one Gluon would put a barrier."""
    found = ()
    for _ in gl.static_range(COUNT):
        found += (gl.allocate_shared_memory(kind, [16, 128], gl.NVMMASharedLayout(128, 16, 2)),)  # type: ignore[assignment]
    return found


@gluon.jit
def leave(out, room, total, row, column, FIRST: gl.constexpr, COUNT: gl.constexpr):  # type: ignore[no-untyped-def]
    """Rounds the slabs from FIRST on and starts the copies of their results."""
    for i in gl.static_range(COUNT):
        room[i].store(total[FIRST + i].to(out.dtype).permute((1, 0)))
    fence_async_shared()
    BARRIER()
    for i in gl.static_range(COUNT):
        tma.async_copy_shared_to_global(out, [row + 16 * (FIRST + i), column], room[i])


@gluon.jit
def turned_kernel(a, a_more, b, out, M, N, K, BM: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr, AHEAD: gl.constexpr,
                  RESIDENT: gl.constexpr, PIECES: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """a, a_more, b, out: descriptors of 16-bit elements with blocks 128 x 64, BM - 128 x 64, 64 x 128, 16 x 128. AHEAD: steps that copies
    are ahead, less than STAGES."""
    SLABS: gl.constexpr = BM // 16
    # 2 KiB for 16 rows of a or 16 columns of b, and as much again for the barriers.
    room = gl.allocate_shared_memory(a.dtype, [STAGES * (SLABS + 8) + 1, 16, 64], gl.NVMMASharedLayout(128, 16, 2))
    base = shared_base(M)
    full = base + (BM + 128) * 128 * STAGES
    warp = warp_of(M)
    copier = gl.where(warp == 0, 1, 0)
    speaker = first_lane(M)
    begin(full, copier * speaker, STAGES)
    BARRIER()
    tiles = gl.cdiv(M, BM) * gl.cdiv(N, 128)
    # What is fetched next, f_: it runs ahead of the products, into the program's next tile.
    f_program = gl.program_id(0)
    f_row, f_column = tile_at(f_program, M, N, BM, 128, GROUP)
    f_step = 0
    f_stage = 0
    f_turn = 1
    for _ in range(gl.minimum(AHEAD, M + AHEAD)):  # which is AHEAD, but not to be unrolled: it is cold code
        f_program, f_row, f_column, f_step, f_stage, f_turn = fetch(
            base, full, copier, f_program, f_row, f_column, f_step, f_stage, f_turn, M, N, K, BM, GROUP, STAGES
        )
    stage = 0
    turn = 0
    if RESIDENT:
        out_room = places(a.dtype, SLABS // PIECES)
        for program in range(gl.program_id(0), tiles, gl.num_programs(0)):
            row, column = tile_at(program, M, N, BM, 128, GROUP)
            total, stage, turn, f_program, f_row, f_column, f_step, f_stage, f_turn = products(
                stage, turn, f_program, f_row, f_column, f_step, f_stage, f_turn, base, full, warp, copier, speaker, M, N, K, a.dtype, BM,
                GROUP, STAGES,
            )  # fmt: skip
            for piece in gl.static_range(PIECES):
                tma.store_wait(0)  # what was stored last has left its place
                BARRIER()
                leave(out, out_room, total, row, column, piece * (SLABS // PIECES), SLABS // PIECES)
        room._keep_alive()
    else:
        row, column = tile_at(gl.program_id(0), M, N, BM, 128, GROUP)
        total, stage, turn, f_program, f_row, f_column, f_step, f_stage, f_turn = products(
            stage, turn, f_program, f_row, f_column, f_step, f_stage, f_turn, base, full, warp, copier, speaker, M, N, K, a.dtype, BM,
            GROUP, STAGES,
        )  # fmt: skip
        room._keep_alive()
        BARRIER()  # all copies have arrived and all products are done: what is allocated from here on may lie where the factors did
        leave(out, places(a.dtype, SLABS), total, row, column, 0, SLABS)
    tma.store_wait(0)


def blocks(config: Config) -> dict[str, list[int]]:
    """Of what each descriptor copies at once, rows x columns."""
    return {"a": [128, 64], "a_more": [config.BM - 128, 64], "b": [64, 128], "out": [16, 128]}


def pieces(config: Config) -> int:
    """Rounds in which a resident program's results leave: as few as the shared memory beside the ring allows."""
    if not config.resident:
        return 1
    beside = 227 * 1024 - 2048 - config.shared_bytes(2)
    return next(count for count in range(1, config.BM // 16 + 1) if config.BM // 16 % count == 0 and config.BM * 256 // count <= beside)


def constants(config: Config) -> dict[str, Any]:
    sizes = {"BM": config.BM, "GROUP": GROUP, "STAGES": config.stages, "AHEAD": config.stages - SLACK}
    return {**sizes, "RESIDENT": config.resident, "PIECES": pieces(config)}


def build(a: Tensor, b: Tensor, out: Tensor, config: Config) -> Bind:
    m, k, n = *a.shape, b.shape[1]
    kind = getattr(gl, str(a.dtype).removeprefix("torch."))

    def described(a: Tensor, b: Tensor, out: Tensor) -> tuple[TensorDescriptor, ...]:
        of = {"a": a, "a_more": a, "b": b, "out": out}
        each = ((of[name], block, gl.NVMMASharedLayout.get_default_for(block, kind)) for name, block in blocks(config).items())
        return tuple(TensorDescriptor(x, list(x.shape), [x.shape[1], 1], block, layout) for x, block, layout in each)

    tiles = config.tiles(m, n)
    grid = (min(tiles, processors(a.device)) if config.resident else tiles, 1, 1)
    ready = built(turned_kernel, grid, *described(a, b, out), m, n, k, **constants(config), num_warps=config.warps)

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return ready(*described(a, b, out), m, n, k)

    return bind


def specimen(config: Config, dtype: str) -> Specimen:
    """What `matmul_tma.specimens` lists."""
    element, kind = POINTERS[dtype].removeprefix("*"), getattr(gl, dtype)
    types = {
        name: f"tensordesc<{element}{block},{gl.NVMMASharedLayout.get_default_for(block, kind)}>" for name, block in blocks(config).items()
    }
    return Specimen(turned_kernel, {**types, "M": "i32", "N": "i32", "K": "i32"}, constants(config), {"num_warps": config.warps})
