"""Which matmul kernel of matmul.cu or matmul_wgmma.cu a product runs, over what grid: the one place in Python that knows their tiles.

The choice is arithmetic: every kernel whose granule divides the addresses and rows is given an estimated time, and the least wins. The
estimate is the busiest SM's share of tiles, times a tile's multiply-adds over K plus a fixed cost (filling the ring, adding up parts,
storing C) written as extra K, over the kernel's speed; for Hopper's own matmul_model.py knows more. A wrong number costs time alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from opwise.backends.cuda_src import matmul_cluster, matmul_hopper32, matmul_odd, matmul_rows32
from opwise.backends.cuda_src.matmul_model import MEMORY, Share, Tiled, hopper_share, rows_suffice
from opwise.backends.cuda_src.plan import Matrix, Plan
from opwise.backends.protocol import UnsupportedWorkload
from opwise.backends.tuned import SHIPPED, Choices

TENSOR_CORES_FROM = (8, 0)  # mma.sync m16n8k16, TF32 and cp.async
WGMMA_ON = (9, 0)  # and on no later GPU
WGMMA_SIZE_LIMIT = 2**30  # the copy engine's coordinates have 32 bits
SIZE = {"float32": 4, "tfloat32": 4, "float16": 2, "bfloat16": 2}
GRID_LIMIT = 2**31 - 1
# Where kernels for a short K were measured, and are offered: on this GPU, K from and to, m and n at least, C's elements a multiprocessor at
# least.
SHORT_ON, SHORT_FROM, SHORT_TO, SHORT_SIDE, SHORT_SHARE = (9, 0), 31, 256, 256, 64 * 64
TEXTBOOK = "matmul_textbook_float32"
# Most shared memory a block may ask for, from the CUDA programming guide's table of compute capabilities. Others: 99 KB.
SHARED_LIMIT = {(7, 5): 64, (8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227}


@dataclass(frozen=True)
class Kernel(Tiled):
    """A kernel's tile of C, what it is launched with, and what its choice goes by.

    `granule`: bytes that must divide the three addresses and the rows of A, B and C. `step_bytes`: bytes of K a stage holds per row of A.
    `speed`: multiply-adds per time, relative to one another; of Hopper's own, of a block that is alone. `fixed`: cost of a tile
    beyond its products, as elements of K. `memory`: of an element of A or B, read once. `crowd`, `lean`: as in matmul_model.hopper_share.
    `split`: blocks of a cluster that share a tile's K, as in matmul_split.cuh; of these `resident`: blocks a multiprocessor, `inbox`: bytes
    for what other blocks push (or for what else lies beside the ring). `turned`: of matmul_turned.cuh, one tile a block (`split` 1).
    `short`: for a short K and rows that do not begin on 16 bytes; of these `alone`: tiles that keep a multiprocessor busy. `among`: K from
    and to, tiles a multiprocessor from and to, where on SHORT_ON a kernel was measured that is offered nowhere else.
    """

    name: str
    rows: int
    columns: int
    threads: int
    step_bytes: int
    stages: int
    granule: int
    speed: float
    fixed: int
    simt: bool = False
    wgmma: bool = False
    split: int = 0
    resident: int = 1
    inbox: int = 0
    turned: bool = False
    short: bool = False
    alone: float = 0.0
    crowd: float = 0.0
    lean: int = 0
    memory: float = 0.0
    among: tuple[int, int, float, float] | None = None

    def shared_bytes(self, size: int) -> int:
        ring = self.stages * (self.rows * self.step_bytes + self.step_bytes // size * self.columns * size)
        if self.split:  # as in SplitTile and TurnedTile: two barriers a stage and one a warp, the way to a multiple of 1024
            return ring + self.inbox + 16 * self.stages + self.threads // 4 + 1024
        if self.wgmma:  # as in WarpgroupTile: four boxes of C beside
            return ring + 4 * 64 * 128 + 16 * self.stages + 1024
        return ring + self.inbox

    def runs_on(self, capability: tuple[int, int]) -> bool:
        return capability == WGMMA_ON if self.wgmma else self.simt or capability >= TENSOR_CORES_FROM

    def is_among(self, m: int, k: int, n: int, granule: int, sm_count: int, capability: tuple[int, int]) -> bool:
        """Is it offered by what `among` says, or needs it not?"""
        if self.among is None:
            return True
        k_from, k_to, few, many = self.among
        fits = m >= 16 and n >= 32 and k_from <= k <= k_to and few * sm_count <= self.tiles(m, n) <= many * sm_count
        return fits and granule == self.granule and capability == SHORT_ON

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        if self.wgmma:
            tile = self.rows, self.columns, self.step_bytes // 2, max(self.split, 1), self.resident
            return hopper_share(m, k, n, *tile, self.crowd, self.lean, bool(self.split) and not self.turned, sm_count)
        turns = max(-(-self.tiles(m, n) // sm_count), self.alone)
        each = turns * self.rows * self.columns
        return Share(each, each * k, memory=self.memory * (m + n) * k)


Other = matmul_hopper32.Tile | matmul_cluster.Tile | matmul_rows32.Tile | matmul_odd.Tile

#        tile        rows  columns threads step stages granule speed fixed
TENSOR = (
    Kernel("128x256_v16", 128, 256, 256, 128, 3, 16, 1.00, 128),
    Kernel("128x128_v16", 128, 128, 128, 64, 4, 16, 0.85, 48),
    Kernel("64x64_v16", 64, 64, 128, 128, 4, 16, 0.50, 32),
    Kernel("16x32_v16", 16, 32, 128, 256, 6, 16, 0.23, 0),
    Kernel("128x128_v4", 128, 128, 256, 64, 4, 4, 0.64, 300),
    Kernel("64x64_v4", 64, 64, 128, 128, 4, 4, 0.38, 230),
)
TENSOR_HALF = tuple(  # in 16 bits, beside Hopper's own on an H200
    replace(kernel, speed=speed, fixed=fixed, memory=MEMORY if kernel.granule == 16 else 0.0)
    for kernel, (speed, fixed) in zip(TENSOR, ((0.91, 220), (0.68, 208), (0.43, 70), (0.18, 186), (0.4, 160), (0.26, 70)), strict=True)
)
FLAT = (Kernel("32x32_v16", 32, 32, 64, 64, 3, 16, 0.40, 100, among=(1, 32, 0.48, 2.0)),)  # 16 bits of a step of K
STAGED = (  # cp.async copies 4 bytes at least: 16-bit rows of odd length or at an odd address pass through registers
    Kernel("128x128_v2", 128, 128, 256, 64, 2, 2, 0.21, 290),
    Kernel("64x64_v2", 64, 64, 128, 64, 2, 2, 0.15, 250),
    Kernel("16x32_v2", 16, 32, 128, 256, 2, 2, 0.05, 50, among=(65, 128, 0.0, 1.5)),
)
# Several widths, because a wave of tiles is paid for in full: 3072 in tiles of 256 fills 2.2 waves, of 192 it fills 2.9; and K shared where
# tiles are few. Of 169 products measured the plan takes the fastest kernel, or one within 1 % of it, for 150, within 5 % for 159.
WGMMA = (
    Kernel("128x256", 128, 256, 384, 128, 4, 16, 2.28, 307, wgmma=True, crowd=0.29),
    Kernel("128x192", 128, 192, 384, 128, 4, 16, 1.92, 196, wgmma=True, crowd=0.09),
    Kernel("128x128", 128, 128, 384, 128, 6, 16, 1.98, 208, wgmma=True, crowd=0.17),
    Kernel("128x64", 128, 64, 384, 128, 8, 16, 2.94, 459, wgmma=True, crowd=1.05, lean=1),
)
SPLIT = (
    Kernel("64x64_s1", 64, 64, 160, 256, 6, 16, 1.61, 373, wgmma=True, split=1, crowd=0.47, lean=1),
    Kernel("64x64_s2", 64, 64, 160, 256, 6, 16, 2.16, 1215, wgmma=True, split=2, inbox=8 * 1024, crowd=1.62, lean=-1),
    Kernel("64x64_s4", 64, 64, 160, 128, 6, 16, 1.06, 594, wgmma=True, split=4, resident=2, inbox=12 * 1024, crowd=0.64),
    Kernel("64x64_s8", 64, 64, 160, 128, 6, 16, 1.13, 524, wgmma=True, split=8, resident=2, inbox=14 * 1024, crowd=0.66),
    Kernel("64x64_s16", 64, 64, 160, 128, 6, 16, 2.82, 3359, wgmma=True, split=16, resident=2, inbox=15 * 1024, crowd=3.59),
    Kernel("64x128_s1", 64, 128, 160, 256, 4, 16, 1.78, 635, wgmma=True, split=1, crowd=0.26),
    Kernel("64x128_s2", 64, 128, 160, 256, 4, 16, 1.87, 569, wgmma=True, split=2, inbox=16 * 1024, crowd=0.73, lean=-1),
    Kernel("128x128_s4", 128, 128, 288, 128, 5, 16, 3.74, 1127, wgmma=True, split=4, inbox=48 * 1024, crowd=1.41),
    Kernel("128x128_s8", 128, 128, 288, 128, 5, 16, 3.17, 897, wgmma=True, split=8, inbox=56 * 1024, crowd=1.60),
)
TURNED = (Kernel("144x128", 144, 128, 288, 128, 6, 16, 2.25, 282, wgmma=True, split=1, turned=True, crowd=0.40),)
SIMT_FLOAT32 = (
    Kernel("simt_128x128_v16", 128, 128, 128, 64, 3, 16, 1.00, 32, simt=True),
    Kernel("simt_64x64_v16", 64, 64, 128, 64, 4, 16, 0.90, 32, simt=True),
    Kernel("simt_16x32_v16", 16, 32, 128, 256, 6, 16, 0.67, 192, simt=True),
    Kernel("simt_128x128_v4", 128, 128, 256, 64, 3, 4, 0.85, 32, simt=True),
    Kernel("simt_64x64_v4", 64, 64, 128, 64, 4, 4, 0.60, 32, simt=True),
    Kernel("words_64x128_v4", 64, 128, 128, 128, 3, 4, 1.37, 30, simt=True, inbox=3 * 64 * 4, short=True, alone=1.5),
    Kernel("words_48x128_v4", 48, 128, 128, 128, 3, 4, 1.21, 36, simt=True, inbox=3 * 48 * 4, short=True, alone=1.5),
)
SIMT_HALF = (Kernel("simt_64x64_v2", 64, 64, 128, 32, 3, 2, 0.02, 32, simt=True),)

KERNELS: dict[str, tuple[Kernel, ...]] = {
    "float32": SIMT_FLOAT32,
    "tfloat32": TENSOR,
    "float16": WGMMA + TURNED + SPLIT + TENSOR_HALF + FLAT + STAGED + SIMT_HALF,
    "bfloat16": WGMMA + TURNED + SPLIT + TENSOR_HALF + FLAT + STAGED + SIMT_HALF,
}
GROUPS = {"float32": 1, "tfloat32": 2, "float16": 3, "bfloat16": 4}  # MATMUL_GROUP of matmul.cu: a type that is compiled alone


def plan(
    m: int,
    k: int,
    n: int,
    dtype_name: str,
    tf32: bool,
    alignment: int,
    sm_count: int,
    capability: tuple[int, int],
    textbook: bool = False,
    wgmma: bool = True,
    choices: Choices = SHIPPED,
) -> Plan:
    """The launch for A (m, k) B (k, n), all row-major and at least 1 in size.

    dtype_name: float32, float16 or bfloat16; tf32: may float32 factors be rounded to TF32? alignment: the greatest power of two up to
    16 that divides all three base addresses, in bytes. textbook: the classroom kernel, float32 only. wgmma: may Hopper's own kernels run?
    choices: what the table "cuda_src/matmul" says on this GPU; it goes by the names of `offered`.

    Raises UnsupportedWorkload for another dtype, for textbook in 16 bits, and where no kernel fits the GPU or the grid.
    """
    if dtype_name not in ("float32", "float16", "bfloat16"):
        raise UnsupportedWorkload(f"matmul: dtype {dtype_name} given, float32, float16 and bfloat16 are taken: convert with .to(...)")
    if textbook:
        if dtype_name != "float32":
            raise UnsupportedWorkload(f"matmul:textbook: {dtype_name} given, float32 alone is taken: use the unnamed variant")
        return Plan(TEXTBOOK, _line(-(-m // 16) * -(-n // 16), m, n), (16, 16, 1), 0)
    kind = group(dtype_name, tf32, capability)
    granule = min(alignment & -alignment, 16, _power_of_two_in(k * SIZE[kind]), _power_of_two_in(n * SIZE[kind]))
    found = offered(m, k, n, kind, granule, sm_count, capability, wgmma)
    if not found:
        raise UnsupportedWorkload(f"matmul: no {kind} kernel for compute capability {capability} and data aligned to {granule} bytes "
                                  f"in {_shared_limit(capability)} bytes of shared memory: use torch_eager")  # fmt: skip
    shared = "16-bit" if SIZE[kind] == 2 else kind  # one model for both types of 16 bits
    found = {name: choices.fitted(shared, name, kernel) for name, kernel in found.items()}
    kernel = found[choices.pick(kind, shared, (m, k, n), found) or quickest(found, m, k, n, sm_count)]
    if isinstance(kernel, Kernel):
        return launch(kernel, kind, m, k, n, sm_count)
    if isinstance(kernel, matmul_cluster.Tile):
        return matmul_cluster.launch(kernel, m, k, n)
    if isinstance(kernel, matmul_rows32.Tile):
        return matmul_rows32.launch(kernel, m, k, n)
    if isinstance(kernel, matmul_odd.Tile):
        return matmul_odd.launch(kernel, m, k, n, sm_count)
    return matmul_hopper32.launch(kernel, m, k, n, sm_count)


def offered(
    m: int, k: int, n: int, kind: str, granule: int, sm_count: int, capability: tuple[int, int], wgmma: bool = True
) -> dict[str, Kernel | Other]:
    """Name -> kernel, of all that take the product; of equals the first is to be used. granule: bytes that divide addresses and rows."""
    mapped = wgmma and capability == matmul_hopper32.ON and granule == matmul_hopper32.GRANULE
    tiles = matmul_hopper32.fitting(m, k, n, kind, sm_count) if mapped else ()
    short = granule < 16 and capability == SHORT_ON and SHORT_FROM <= k <= SHORT_TO
    short = short and min(m, n) >= SHORT_SIDE and m * n >= SHORT_SHARE * sm_count
    kernels = [
        kernel
        for kernel in KERNELS[kind]
        if kernel.granule <= granule and kernel.shared_bytes(SIZE[kind]) <= _shared_limit(capability) and kernel.runs_on(capability)
        and (not kernel.short or short) and kernel.is_among(m, k, n, granule, sm_count, capability)
        and (not kernel.wgmma or (wgmma and rows_suffice(kernel.rows, m, k, n) and max(m, k, n) <= WGMMA_SIZE_LIMIT))
    ]  # fmt: skip
    shared = matmul_cluster.fitting(m, k, n, kind, granule, sm_count) if wgmma and capability == matmul_cluster.ON else ()
    rows = matmul_rows32.fitting(m, k, n, granule, sm_count) if wgmma and capability == matmul_rows32.ON and kind == "float32" else ()
    odd = matmul_odd.fitting(m, k, n, kind, granule) if wgmma and capability == matmul_odd.ON else ()
    usual = {f"hopper_{tile.name}": tile for tile in tiles} | {kernel.name: kernel for kernel in kernels}
    others = {f"cluster_{tile.name}": tile for tile in shared} | {f"rows_{tile.name}": tile for tile in rows}
    return {**usual, **others, **{f"odd_{tile.name}": tile for tile in odd}}


def quickest(found: Mapping[str, Kernel | Other], m: int, k: int, n: int, sm_count: int) -> str:
    """The name of the kernel with the least estimate."""
    return min(found, key=lambda name: found[name].estimate(m, k, n, sm_count))


def _shared_limit(capability: tuple[int, int]) -> int:
    return SHARED_LIMIT.get(capability, 99 if capability >= TENSOR_CORES_FROM else 48) * 1024


def launch(kernel: Kernel, kind: str, m: int, k: int, n: int, sm_count: int) -> Plan:
    """The kernel over all of C."""
    block, shared, tiles = (kernel.threads, 1, 1), kernel.shared_bytes(SIZE[kind]), kernel.tiles(m, n)
    if not kernel.wgmma:
        return Plan(_name(kernel, kind), _line(tiles, m, n), block, shared)
    box_rows = min(m, kernel.rows) if kernel.split and not kernel.turned else kernel.rows  # as matmul_split.cuh counts the bytes
    factors = (Matrix(m, k, box_rows, 64), Matrix(k, n, kernel.step_bytes // 2, 64))
    result = (Matrix(m, n, kernel.rows if kernel.turned else 64, 64),) if kernel.turned or not kernel.split else ()
    blocks = tiles * kernel.split if kernel.split else min(tiles, sm_count)
    return Plan(_name(kernel, kind), _line(blocks, m, n), block, shared, matrices=(*factors, *result))


def group(dtype_name: str, tf32: bool, capability: tuple[int, int]) -> str:
    """The key into KERNELS and GROUPS. TF32 is a permission, not a demand: a GPU without it multiplies in float32."""
    return "tfloat32" if dtype_name == "float32" and tf32 and capability >= TENSOR_CORES_FROM else dtype_name


def kernel_names(kind: str) -> tuple[str, ...]:
    """Every kernel of matmul.cu and matmul_wgmma.cu for float32, tfloat32, float16 or bfloat16."""
    names = tuple(_name(kernel, kind) for kernel in KERNELS[kind])
    return (*names, TEXTBOOK) if kind == "float32" else names


def _name(kernel: Kernel, kind: str) -> str:
    return f"matmul_wgmma_{kind}_{kernel.name}" if kernel.wgmma else f"matmul_{kind}_{kernel.name}"


def _line(blocks: int, m: int, n: int) -> tuple[int, int, int]:
    if blocks > GRID_LIMIT:
        raise UnsupportedWorkload(f"matmul: a {m} x {n} product needs {blocks} blocks, a grid has {GRID_LIMIT} at most: split it by rows")
    return (blocks, 1, 1)


def _power_of_two_in(number: int) -> int:
    """The greatest power of two that divides the number."""
    return number & -number
