"""The kernels of matmul.cu and matmul_wgmma.cu: their tiles, and the numbers by which matmul_plan.py chooses among them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from opwise.backends.cuda_src.matmul_model import MEMORY, SECTOR, Share, Tiled, hopper_share, in_clusters

TENSOR_CORES_FROM = (8, 0)  # mma.sync m16n8k16, TF32 and cp.async
WGMMA_ON = (9, 0)  # and on no later GPU
MEASURED_ON = (9, 0)  # kernels that are offered where they were measured and nowhere else
TEXTBOOK = "matmul_textbook_float32"


class Among(NamedTuple):
    """The products a kernel was measured for: K from and to, tiles a multiprocessor from and to, m and n from, m to; `granule_to`: bytes
    that divide addresses and rows at most; `slanted`: only where rows of A or B, in 16 bits, are not a multiple of 32 bytes apart. Where
    rows of both are not, tiles may be `many_slanted`, if that is more."""

    k_from: int
    k_to: int
    few: float
    many: float
    rows_from: int = 16
    columns_from: int = 32
    rows_to: int = 2**62
    granule_to: int = 16
    slanted: bool = False
    many_slanted: float = 0.0


@dataclass(frozen=True)
class Kernel(Tiled):
    """A kernel's tile of C, what it is launched with, and what its choice goes by.

    `granule`: bytes that must divide the three addresses and the rows of A, B and C. `step_bytes`: bytes of K a stage holds per row of A.
    `speed`: multiply-adds per time, relative to one another; of Hopper's own, of a block that is alone. `fixed`: cost of a tile
    beyond its products, as elements of K. `memory`: of an element of A or B, read once. `crowd`, `lean`: as in matmul_model.hopper_share.
    `split`: blocks of a cluster that share a tile's K, as in matmul_split.cuh; of these `resident`: blocks a multiprocessor, `inbox`: bytes
    for what other blocks push (or for what else lies beside the ring). `turned`: of matmul_turned.cuh, one tile a block (`split` 1),
    or of matmul_turned_pair.cuh.
    `boxes`: of C beside the ring, where there is no `split`. `cluster`: rows and columns of tiles whose blocks
    fetch parts of A (side by side) or of B (one below the other) for each other, as in matmul_wgmma.cuh and matmul_pair.cuh.
    `alone`: what a multiprocessor's only tile takes, in tiles of many. `at_once`: blocks that it begins and ends together, so that it has a
    multiple of them or one. `whole`: a step is all of K, A and B begin on 16 bytes: matmul_whole.cuh.
    `among`: where a kernel was measured that is offered nowhere else.
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
    boxes: int = 4
    cluster: tuple[int, int] = (1, 1)
    alone: float = 1.0
    at_once: int = 1
    crowd: float = 0.0
    lean: int = 0
    memory: float = 0.0
    whole: bool = False
    among: Among | None = None

    @property
    def cut(self) -> bool:
        """Are the boxes of an A that is lower than a tile as low as A? So that they are where nobody else counts their bytes."""
        return self.split > 0 and not self.turned and self.cluster == (1, 1)

    def tiles(self, m: int, n: int) -> int:
        return math.prod(in_clusters(m, n, self.rows, self.columns, self.cluster))

    def shared_bytes(self, size: int) -> int:
        ring = self.stages * (self.rows * self.step_bytes + self.step_bytes // size * self.columns * size)
        if self.split:  # as in SplitTile and TurnedTile: two barriers a stage and one a warp, the way to a multiple of 1024
            return ring + self.inbox + 16 * self.stages + self.threads // 4 + 1024
        if self.wgmma:  # as in WarpgroupTile and TurnedPairTile
            return ring + self.boxes * 64 * 128 + self.inbox + 16 * self.stages + 1024
        return ring + self.inbox

    def runs_on(self, capability: tuple[int, int]) -> bool:
        return capability == WGMMA_ON if self.wgmma else self.simt or capability >= TENSOR_CORES_FROM

    def takes(self, m: int, k: int, n: int, granule: int, sm_count: int, capability: tuple[int, int]) -> bool:
        """Is the product among those that this kernel was measured for, if it is for some alone?"""
        if self.whole and (2 * k > self.step_bytes or (n > self.columns and not self.inbox)):
            return False
        if self.among is None:
            return True
        of, slanted = self.among, (k % SECTOR > 0, n % SECTOR > 0)
        many = max(of.many, of.many_slanted) if all(slanted) else of.many
        large = of.rows_from <= m <= of.rows_to and n >= of.columns_from and of.few * sm_count <= self.tiles(m, n) <= many * sm_count
        large = large and (any(slanted) or not of.slanted)
        return large and of.k_from <= k <= of.k_to and granule <= of.granule_to and capability == MEASURED_ON

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        if self.wgmma:
            tile = self.rows, self.columns, self.step_bytes // 2, max(self.split, 1), self.resident
            return hopper_share(m, k, n, *tile, self.crowd, self.lean, self.cut, self.cluster, sm_count)
        tiles = self.tiles(m, n)
        turns = -(-tiles // (sm_count * self.at_once)) * self.at_once if tiles > sm_count else self.alone
        each = turns * self.rows * self.columns
        return Share(each, each * k, memory=self.memory * (m + n) * k)

    def source_name(self, kind: str) -> str:
        return f"matmul_wgmma_{kind}_{self.name}" if self.wgmma else f"matmul_{kind}_{self.name}"


#        tile        rows  columns threads step stages granule speed fixed
TENSOR = (
    Kernel("128x256_v16", 128, 256, 256, 128, 3, 16, 1.00, 128),
    Kernel("128x128_v16", 128, 128, 128, 64, 4, 16, 0.85, 48),
    Kernel("64x64_v16", 64, 64, 128, 128, 4, 16, 0.50, 32),
    Kernel("16x32_v16", 16, 32, 128, 256, 6, 16, 0.23, 60),
    Kernel("128x128_v4", 128, 128, 256, 64, 4, 4, 0.64, 300),
    Kernel("64x64_v4", 64, 64, 128, 128, 4, 4, 0.38, 230),
)
TENSOR_HALF = tuple(  # in 16 bits, beside Hopper's own on an H200
    replace(kernel, speed=speed, fixed=fixed, memory=MEMORY if kernel.granule == 16 else 0.0)
    for kernel, (speed, fixed) in zip(TENSOR, ((0.91, 220), (0.68, 208), (0.43, 70), (0.18, 186), (0.4, 160), (0.26, 70)), strict=True)
)
FLAT = (Kernel("32x32_v16", 32, 32, 64, 64, 3, 16, 0.40, 100, among=Among(1, 32, 0.48, 2.0)),)  # 16 bits of a step of K
STAGED = (  # cp.async copies 4 bytes at least: 16-bit rows of odd length or at an odd address pass through registers
    Kernel("128x128_v2", 128, 128, 256, 64, 2, 2, 0.21, 290),
    Kernel("64x64_v2", 64, 64, 128, 64, 2, 2, 0.15, 250),
    Kernel("16x32_v2", 16, 32, 128, 256, 2, 2, 0.05, 50, among=Among(65, 128, 0.0, 1.5, granule_to=2)),
)
# All of K in each block, in one step. Low numbers, since they are offered where they were the quickest, and nowhere else: 16 rows up to a
# block a multiprocessor (1003x95x73 in 2.9 us, the others from 4.0 on), 32 rows to two (8003x95x73).
APART = 96 * 30  # bytes between B's rows where a block has some of its columns, which lie on 16 bytes as they do in B
OF_ONE, OF_TWO = Among(33, 96, 0.0, 0.97, rows_from=37, columns_from=17, granule_to=2), Among(65, 96, 0.49, 1.91, granule_to=2)
WHOLE = (
    Kernel("whole_16x80_v2", 16, 80, 160, 192, 1, 2, 0.25, 0, whole=True, among=OF_ONE),
    Kernel("whole_32x80_v2", 32, 80, 160, 192, 1, 2, 0.25, 0, whole=True, among=OF_TWO),
    Kernel("beside_16x80_v2", 16, 80, 160, 192, 1, 2, 0.25, 0, whole=True, inbox=APART, among=OF_ONE._replace(columns_from=81)),
    Kernel("beside_32x80_v2", 32, 80, 160, 192, 1, 2, 0.25, 0, whole=True, inbox=APART, among=OF_TWO._replace(columns_from=81)),
)
# Several widths, because a wave of tiles is paid for in full: 3072 in tiles of 256 fills 2.2 waves, of 192 it fills 2.9; and K shared where
# tiles are few. Of 169 products measured the plan takes the fastest kernel, or one within 1 % of it, for 150, within 5 % for 159.
WGMMA = (
    Kernel("128x256", 128, 256, 384, 128, 4, 16, 2.27, 243, wgmma=True, crowd=0.28),
    Kernel("128x192", 128, 192, 384, 128, 4, 16, 2.02, 221, wgmma=True, crowd=0.15),
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
# Two blocks a multiprocessor, for a B that is large and read once, by few rows: 16x512x30000 takes 10.4 us, by the others 12.3 or more.
# High numbers, since it is offered where it was the quickest, or nearly.
TWICE = (Kernel("64x128_twice", 64, 128, 160, 128, 4, 16, 2.8, 300, wgmma=True, split=1, resident=2,
                among=Among(1, 2048, 0.9, math.inf, rows_from=1, columns_from=8192, rows_to=64)),)  # fmt: skip
# Two halves of a long K where A is the larger; CUDA C++ alone has it.
LONG = (Kernel("128x128_s2", 128, 128, 288, 128, 6, 16, 1.92, 400, wgmma=True, split=2, inbox=32 * 1024, crowd=0.3,
               among=Among(4096, 8192, 0.45, 0.5, rows_from=2048, columns_from=256)),)  # fmt: skip
# Where requests to the L2 are the limit: its own numbers hardly count there.
PAIRS = (Kernel("64x128_p2x1", 64, 128, 160, 256, 4, 16, 2.1, 400, wgmma=True, split=1, cluster=(2, 1), crowd=0.2,
                among=Among(512, 8192, 0.9, 1.0, rows_from=512, columns_from=512, slanted=True)),)  # fmt: skip
TURNED = (Kernel("144x128", 144, 128, 288, 128, 6, 16, 2.25, 282, wgmma=True, split=1, turned=True, crowd=0.40),)
STEPS = Among(65, 2**30, 0.0, math.inf)  # more than one step of K: of one there is nothing to take turns at, and it was slower
PINGPONG = (
    Kernel("pingpong_128x128", 128, 128, 384, 128, 6, 16, 1.84, 197, wgmma=True, cluster=(1, 2), crowd=0.03, among=STEPS),
    Kernel("pingpong_192x128", 192, 128, 384, 128, 5, 16, 2.14, 248, wgmma=True, boxes=2, cluster=(1, 2), crowd=0.20, among=STEPS),
)
# Pairs of blocks that fetch for each other. Where requests to the L2 are the limit, of all tiles these make the fewest for a product;
# and 192x192, of three consumers, fills waves that others do not: 2112 cubed is 132 of its tiles.
LARGE = Among(256, 8200, 0.9, math.inf)
COUPLED = (
    Kernel("192x192_1x2", 192, 192, 512, 128, 4, 16, 1.98, 355, wgmma=True, boxes=3, cluster=(1, 2), crowd=0.09, among=LARGE),
    Kernel("128x256_2x1", 128, 256, 384, 128, 4, 16, 2.29, 253, wgmma=True, cluster=(2, 1), crowd=0.17, among=LARGE._replace(slanted=True)),
)
# Turned round, as high as one wave of an H200 asks for: 2504 cubed is 13 x 10 tiles of 208x256, 2056 cubed 12 x 11 of 176x192, 2200 cubed
# 14 x 9 of 160x256, 1800 cubed 13 x 10 of 144x192. Beside the ring: outboxes of 5, 3, 4 and 3 boxes of C of 16 rows.
# Offered where they were timed: 160x256, which asks the L2 for the least, up to two waves, and for as many where A and B are slanted;
# 144x192 up to any number: 2592 cubed is 1.9 waves of it, 52.2 us where the next best took 60.2.
ONE_WAVE = Among(512, 4608, 0.95, 1.0, rows_from=1600, columns_from=1600)
FROM_ONE_WAVE = ONE_WAVE._replace(many=2.0, many_slanted=math.inf, k_to=8200)
TURNED_PAIRS = (
    Kernel("208x256_1x2", 208, 256, 384, 128, 3, 16, 2.44, 413, wgmma=True, turned=True, boxes=0, inbox=2 * 2 * 5 * 2048, cluster=(1, 2),
           crowd=0.28, among=ONE_WAVE),
    Kernel("176x192_2x1", 176, 192, 512, 128, 4, 16, 1.77, 330, wgmma=True, turned=True, boxes=0, inbox=3 * 2 * 3 * 2048, cluster=(2, 1),
           crowd=0.10, among=ONE_WAVE),
    Kernel("160x256_2x1", 160, 256, 384, 128, 4, 16, 2.21, 428, wgmma=True, turned=True, boxes=0, inbox=2 * 4 * 2048, cluster=(2, 1),
           crowd=0.22, among=FROM_ONE_WAVE),
    Kernel("144x192_1x2", 144, 192, 512, 128, 4, 16, 1.89, 269, wgmma=True, turned=True, boxes=0, inbox=3 * 2 * 3 * 2048, cluster=(1, 2),
           crowd=0.12, among=ONE_WAVE._replace(many=math.inf)),
)  # fmt: skip
SHORT = Among(31, 256, 0.75, math.inf, rows_from=256, columns_from=256, granule_to=8)  # a short K, rows that do not begin on 16 bytes
FEW = SHORT._replace(many=4.0)  # where four stages were quicker than three, or nearly
LOW = SHORT._replace(k_to=128, many=1.0)


def words(rows: int, stages: int, speed: float, among: Among) -> Kernel:
    """One of matmul_fma_words.cuh. In shared memory A's rows are a multiple of 16, and each has a word more than a step of K."""
    beside = stages * (-(-rows // 16) * 16 * 132 - rows * 128)
    name, at_once = (f"words_{rows}x128_f4_v4", 2) if stages == 4 else (f"words_{rows}x128_v4", 1)
    return Kernel(name, rows, 128, 128, 128, stages, 4, speed, 24, simt=True, inbox=beside, alone=1.15, at_once=at_once, among=among)


SIMT_FLOAT32 = (
    Kernel("simt_128x128_v16", 128, 128, 128, 64, 3, 16, 1.00, 32, simt=True),
    Kernel("simt_64x64_v16", 64, 64, 128, 64, 4, 16, 0.90, 32, simt=True),
    Kernel("simt_16x32_v16", 16, 32, 128, 256, 6, 16, 0.67, 192, simt=True),
    Kernel("simt_128x128_v4", 128, 128, 256, 64, 3, 4, 0.85, 32, simt=True),
    Kernel("simt_64x64_v4", 64, 64, 128, 64, 4, 4, 0.60, 32, simt=True),
    words(64, 3, 1.26, SHORT._replace(few=0.6)),
    words(64, 4, 1.29, FEW),
    words(56, 3, 1.21, SHORT),
    words(56, 4, 1.23, FEW),
    words(48, 4, 1.22, FEW),
    words(32, 4, 0.97, LOW),
)
SIMT_HALF = (Kernel("simt_64x64_v2", 64, 64, 128, 32, 3, 2, 0.02, 32, simt=True),)

HOPPER_HALF = WGMMA + PINGPONG + COUPLED + TURNED + TURNED_PAIRS + SPLIT + TWICE + LONG + PAIRS
ALL_HALF = HOPPER_HALF + TENSOR_HALF + FLAT + STAGED + WHOLE + SIMT_HALF
KERNELS: dict[str, tuple[Kernel, ...]] = {"float32": SIMT_FLOAT32, "tfloat32": TENSOR, "float16": ALL_HALF, "bfloat16": ALL_HALF}
GROUPS = {"float32": 1, "tfloat32": 2, "float16": 3, "bfloat16": 4}  # MATMUL_GROUP of matmul.cu: a type that is compiled alone


def kernel_names(kind: str) -> tuple[str, ...]:
    """Every kernel of matmul.cu and matmul_wgmma.cu for float32, tfloat32, float16 or bfloat16."""
    names = tuple(kernel.source_name(kind) for kernel in KERNELS[kind])
    return (*names, TEXTBOOK) if kind == "float32" else names
