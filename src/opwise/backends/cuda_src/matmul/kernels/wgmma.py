"""The kernels of wgmma.cu: their tiles, and the numbers by which matmul/__init__.py chooses among them."""

from __future__ import annotations

import math

from opwise.backends.cuda_src.matmul.configuration import Among, Kernel

# Several widths, because a wave of tiles is paid for in full: 3072 in tiles of 256 fills 2.2 waves, of 192 it fills 2.9; and K shared where
# tiles are few. The speeds of the plain tiles, 128x192_s2, 144x128 and of ping-pong follow both states of the clock: ping-pong of 128x128
# is 2 to 4 % quicker under the power cap, 128x256 up to 1.3 times as fast at full clock on an H100 (docs/lab/two-clocks.md).
WGMMA = (
    Kernel("128x256", 128, 256, 384, 128, 4, 16, 2.7, 243, wgmma=True, crowd=0.28),
    Kernel("128x192", 128, 192, 384, 128, 4, 16, 2.4, 221, wgmma=True, crowd=0.15),
    Kernel("128x128", 128, 128, 384, 128, 6, 16, 2.0, 208, wgmma=True, crowd=0.17),
    Kernel("128x64", 128, 64, 384, 128, 8, 16, 2.94, 459, wgmma=True, crowd=1.05, lean=1),
)
SPLIT = (
    Kernel("64x64_s1", 64, 64, 160, 256, 6, 16, 1.61, 373, wgmma=True, split=1, crowd=0.47, lean=1),
    Kernel("64x64_s2", 64, 64, 160, 256, 6, 16, 2.16, 1215, wgmma=True, split=2, inbox=8 * 1024, crowd=1.62, lean=-1),
    Kernel("64x64_s4", 64, 64, 160, 128, 6, 16, 1.06, 594, wgmma=True, split=4, resident=2, inbox=12 * 1024, crowd=0.64),
    Kernel("64x64_s8", 64, 64, 160, 128, 6, 16, 1.13, 524, wgmma=True, split=8, resident=2, inbox=14 * 1024, crowd=0.66),
    Kernel("64x64_s16", 64, 64, 160, 128, 6, 16, 2.82, 3359, wgmma=True, split=16, resident=2, inbox=15 * 1024, crowd=3.59),
    Kernel("64x128_s1", 64, 128, 160, 256, 4, 16, 1.82, 635, wgmma=True, split=1, crowd=0.26),
    Kernel("64x128_s2", 64, 128, 160, 256, 4, 16, 1.87, 569, wgmma=True, split=2, inbox=16 * 1024, crowd=0.73, lean=-1),
    Kernel("128x128_s4", 128, 128, 288, 128, 5, 16, 3.67, 1238, wgmma=True, split=4, inbox=48 * 1024, crowd=1.36),
    Kernel("128x128_s8", 128, 128, 288, 128, 5, 16, 4.2, 1830, wgmma=True, split=8, inbox=56 * 1024, crowd=1.6),
)
# Where B has 17 to 32 columns, by boxes as wide: of boxes of 64 columns half are zeros, which the copy engine is slow to make. 4096x4096x32
# takes 11.8 us by halves of K, 64x64_s1 14.5; fitted to 42 products.
NARROW_B = Among(257, 2**30, 0.0, math.inf, rows_from=17, columns_from=17, columns_to=32)
NARROW = (
    Kernel("64x32_s4", 64, 32, 160, 128, 8, 16, 0.73, 303, wgmma=True, split=4, resident=2, inbox=6 * 1024, crowd=0.77, among=NARROW_B),
    Kernel("64x32_s8", 64, 32, 160, 128, 8, 16, 0.44, 129, wgmma=True, split=8, resident=2, inbox=7 * 1024, crowd=0.31, among=NARROW_B),
    Kernel("128x32_s1", 128, 32, 288, 128, 5, 16, 1.37, 105, wgmma=True, split=1, resident=2, crowd=1.57,
           among=NARROW_B._replace(k_from=33, few=0.25)),
)  # fmt: skip
# Two halves of a long K where 128 x 192 makes nearly half a wave of few rows: 256x13824x5120 takes 63.6 us, by 128x64 87.6.
HALVES = (Kernel("128x192_s2", 128, 192, 288, 128, 4, 16, 2.17, 280, wgmma=True, split=2, inbox=48 * 1024, crowd=0.36,
               among=Among(3072, 2**30, 0.4, 0.5, rows_from=129, columns_from=129, rows_to=512, straight=True)),)  # fmt: skip
SWAP_AB = (Kernel("144x128", 144, 128, 288, 128, 6, 16, 2.34, 282, wgmma=True, split=1, swap_ab=True, crowd=0.40),)
STEPS = Among(65, 2**30, 0.0, math.inf)  # more than one step of K: of one there is nothing to take turns at, and it was slower
PINGPONG = (
    Kernel("pingpong_128x128", 128, 128, 384, 128, 6, 16, 1.77, 197, wgmma=True, cluster=(1, 2), crowd=0.03, alone=1.08,
           slow_lines=1.04, among=STEPS),
    Kernel("pingpong_192x128", 192, 128, 384, 128, 5, 16, 1.93, 239, wgmma=True, boxes=2, cluster=(1, 2), crowd=0.07, alone=1.06,
           slow_lines=0.88, among=STEPS),
    Kernel("pingpong_128x96", 128, 96, 384, 128, 7, 16, 1.88, 155, wgmma=True, boxes=2, cluster=(1, 2), crowd=0.29, alone=1.015,
           among=Among(513, 2**30, 0.5, math.inf, rows_from=129, straight=True)),
)  # fmt: skip
# Pairs of blocks that fetch for each other. Where requests to the L2 are the limit, of all tiles these make the fewest for a product;
# and 192x192, of three consumers, fills waves that others do not: 2112 cubed is 132 of its tiles.
LARGE = Among(256, 8200, 0.9, math.inf)
COUPLED = (
    Kernel("192x192_1x2", 192, 192, 512, 128, 4, 16, 1.98, 355, wgmma=True, boxes=3, cluster=(1, 2), crowd=0.09, among=LARGE),
    Kernel("128x256_2x1", 128, 256, 384, 128, 4, 16, 2.29, 253, wgmma=True, cluster=(2, 1), crowd=0.17, slow_lines=1.12,
           among=LARGE._replace(few=0.74, slanted=True)),
)  # fmt: skip

TILES = (*WGMMA, *PINGPONG, *COUPLED, *SWAP_AB, *SPLIT, *NARROW, *HALVES)
