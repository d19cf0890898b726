"""The kernels of matmul_wgmma.cu: their tiles, and the numbers by which matmul_plan.py chooses among them."""

from __future__ import annotations

import math
from dataclasses import replace

from opwise.backends.cuda_src.matmul_kernel import Among, Kernel

# Several widths, because a wave of tiles is paid for in full: 3072 in tiles of 256 fills 2.2 waves, of 192 it fills 2.9; and K shared where
# tiles are few. The speeds of the plain tiles, 128x192_s2, 96x128, 128x96, 144x128 and of ping-pong follow both states of the clock:
# ping-pong of 128x128 is 2 to 4 % quicker under the power cap, 128x256 up to 1.3 times as fast at full clock on an H100
# (docs/lab/two-clocks.md).
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
# Several blocks a multiprocessor, for a B that is large and read once, by few rows: as many as run all tiles at once, each of fewer slots.
# 16x512x30000 takes 10.4 us by two, 12.3 or more by others; 16x256x13824 4.4 by two of 64 columns, 5.7 by 16x32_v16, 4.7 in cuBLAS;
# 16x256x50304 9.4 by three, 11.1 by two, 9.8; 16x64x50304 4.6 by six, 6.2 by two, 5.3. Of a longer K where tiles are just more than the
# multiprocessors: 6x2560x18944 takes 24.8 us by two, by others 28.3 or more, in cuBLAS 26.9; 15x4704x18552 47.8, 53.7 and 48.8. High
# numbers, since they are offered where they were the quickest, or nearly.
FEW_ROWS = Among(1, 2048, 0.9, 2.0, rows_from=17, columns_from=8192, rows_to=64)
CROWDED = (
    Kernel("64x64_twice", 64, 64, 160, 128, 6, 16, 2.8, 300, wgmma=True, split=1, resident=2,
           among=FEW_ROWS._replace(k_to=768, few=1.0, rows_to=32)),
    Kernel("64x64_short", 64, 64, 160, 128, 2, 16, 3.2, 300, wgmma=True, split=1, resident=6,
           among=FEW_ROWS._replace(k_to=128, few=1.8, many=math.inf)),
    Kernel("64x128_twice", 64, 128, 160, 128, 4, 16, 2.8, 300, wgmma=True, split=1, resident=2,
           among=(FEW_ROWS, FEW_ROWS._replace(k_from=2049, k_to=8192, few=1.005))),
    Kernel("64x128_thrice", 64, 128, 160, 128, 3, 16, 2.8, 300, wgmma=True, split=1, resident=3,
           among=FEW_ROWS._replace(few=2.0, many=math.inf)),
)  # fmt: skip
# Where B has 17 to 32 columns, by boxes as wide: of boxes of 64 columns half are zeros, which the copy engine is slow to make. 4096x4096x32
# takes 11.8 us by halves of K, 64x64_s1 14.5; fitted to 42 products, of which the plan's choice loses 0.6 %.
NARROW_B = Among(257, 2**30, 0.0, math.inf, rows_from=17, columns_from=17, columns_to=32)
NARROW = (
    Kernel("64x32_s2", 64, 32, 160, 128, 8, 16, 0.81, 342, wgmma=True, split=2, resident=2, inbox=4 * 1024, crowd=0.98, among=NARROW_B),
    Kernel("64x32_s4", 64, 32, 160, 128, 8, 16, 0.73, 303, wgmma=True, split=4, resident=2, inbox=6 * 1024, crowd=0.77, among=NARROW_B),
    Kernel("64x32_s8", 64, 32, 160, 128, 8, 16, 0.44, 129, wgmma=True, split=8, resident=2, inbox=7 * 1024, crowd=0.31, among=NARROW_B),
    Kernel("128x32_s1", 128, 32, 288, 128, 5, 16, 1.37, 105, wgmma=True, split=1, resident=2, crowd=1.57,
           among=NARROW_B._replace(k_from=33, few=0.25)),
    Kernel("128x32_s2", 128, 32, 288, 128, 5, 16, 0.82, 91, wgmma=True, split=2, resident=2, inbox=8 * 1024, crowd=0.86, among=NARROW_B),
)  # fmt: skip
# A K of two steps at most, by blocks of as many slots, four a multiprocessor: 200000x64x32 takes 12.4 us, 15.8 by 128x32_s1, 13.8 in
# cuBLAS; 1000000x128x32 81.7, 85.2 and 78.5.
SHORT = (Kernel("128x32_short", 128, 32, 288, 128, 2, 16, 1.37, 40, wgmma=True, split=1, resident=4, crowd=0.78,
                among=NARROW_B._replace(k_from=33, k_to=128, few=4.0)),)  # fmt: skip
# Two halves of a long K where A is the larger; CUDA C++ alone has it. 2048x4096x320, 48 tiles, takes 14.2 us, by others 15.9 or more.
LONG = (Kernel("128x128_s2", 128, 128, 288, 128, 6, 16, 1.97, 400, wgmma=True, split=2, inbox=32 * 1024, crowd=0.3,
               among=Among(3072, 8192, 0.36, 0.5, rows_from=2048, columns_from=256)),)  # fmt: skip
# Two halves of a long K where 128 x 192 makes nearly half a wave of few rows: 256x13824x5120 takes 63.6 us, by 128x64 87.6. From 1024 rows
# on 96x128 is quicker wherever both make a wave: 1024x8192x1536 38.7 and 41.3, 2048x8192x768 39.6 and 42.1, 1024x6144x1536 29.6 and 32.7.
# But where C is two of its tiles wide and others are wider than C: 4096x4096x320 takes 21.6 us, by others 26.2 or more.
HALVES = (Kernel("128x192_s2", 128, 192, 288, 128, 4, 16, 2.17, 280, wgmma=True, split=2, inbox=48 * 1024, crowd=0.36,
               among=Among(3072, 2**30, 0.4, 0.5, rows_from=129, columns_from=129, rows_to=512, straight=True)),)  # fmt: skip
TWO_WIDE = tuple(
    replace(kernel, speed=2.2, among=Among(3072, 8192, 0.4, 0.5, rows_from=3073, columns_from=257, columns_to=352, straight=True))
    for kernel in HALVES
)
# Where requests to the L2 are the limit: its own numbers hardly count there. And of fewer rows and tiles, in CUDA C++ alone: 200x2000x3000
# takes 11.7 us by 96 tiles, by others 13.8.
REQUESTS = Among(512, 8192, 0.9, 1.0, rows_from=512, columns_from=512, slanted=True)
PAIRS = (Kernel("64x128_p2x1", 64, 128, 160, 256, 4, 16, 2.1, 400, wgmma=True, split=1, cluster=(2, 1), crowd=0.2, among=REQUESTS),)
LOW_PAIRS = tuple(replace(kernel, among=REQUESTS._replace(few=0.6, rows_from=129)) for kernel in PAIRS)
TURNED = (Kernel("144x128", 144, 128, 288, 128, 6, 16, 2.34, 282, wgmma=True, split=1, turned=True, crowd=0.40),)
# Sizes between the others, since what is not a power of two seldom fills waves of these: 256x13824x5120 is 108 tiles of 128x96, where
# 128x128 makes 80 and takes 74.8 us for 62.4; 1024 x 5120 is 256 of 128x160, two waves that 128x192 takes, too. Where B is the wider
# by 96 and 160 columns, in boxes of 32, where A is the higher by as many rows, turned: 2048x3072x768 is 132 tiles of 96x128, 15.9 us
# for 18.9, and 5120 x 1024 is 256 of 160x128, 77.6 for 90.2. Fitted to 306 products of layers of language models, K and N multiples of a
# line of memory: the plan's choices among them lose 0.5 %.
BETWEEN_FROM = Among(513, 2**30, 0.5, math.inf, rows_from=129, straight=True)
ONE, TWO = (BETWEEN_FROM._replace(rows_from=257, many=waves) for waves in (1.0, 2.0))
TURNED_BETWEEN = (
    Kernel("96x128", 96, 128, 288, 128, 7, 16, 1.98, 164, wgmma=True, split=1, turned=True, crowd=0.36, among=ONE),
    Kernel("160x128", 160, 128, 288, 128, 6, 16, 2.55, 214, wgmma=True, split=1, turned=True, crowd=0.53, among=TWO),
)
BETWEEN = (
    Kernel("128x96", 128, 96, 384, 128, 7, 16, 1.95, 174, wgmma=True, boxes=2, crowd=0.34, lean=1, among=BETWEEN_FROM),
    Kernel("128x160", 128, 160, 384, 128, 5, 16, 3.15, 27, wgmma=True, boxes=2, crowd=1.14, lean=1, among=BETWEEN_FROM),
)
STEPS = Among(65, 2**30, 0.0, math.inf)  # more than one step of K: of one there is nothing to take turns at, and it was slower
PINGPONG = (
    Kernel("pingpong_128x128", 128, 128, 384, 128, 6, 16, 1.77, 197, wgmma=True, cluster=(1, 2), crowd=0.03, alone=1.08,
           slow_lines=1.04, among=STEPS),
    Kernel("pingpong_128x128_2x1", 128, 128, 384, 128, 6, 16, 1.84, 197, wgmma=True, cluster=(2, 1), crowd=0.03,
           among=STEPS._replace(few=0.45, many=1.5, slanted_b=True)),
    Kernel("pingpong_192x128", 192, 128, 384, 128, 5, 16, 1.93, 239, wgmma=True, boxes=2, cluster=(1, 2), crowd=0.07, alone=1.06,
           slow_lines=0.88, among=STEPS),
    Kernel("pingpong_128x96", 128, 96, 384, 128, 7, 16, 1.88, 155, wgmma=True, boxes=2, cluster=(1, 2), crowd=0.29, alone=1.015,
           among=BETWEEN_FROM),
    Kernel("pingpong_128x160", 128, 160, 384, 128, 5, 16, 1.78, 211, wgmma=True, boxes=2, cluster=(1, 2), crowd=0.05, alone=1.11,
           among=BETWEEN_FROM),
)  # fmt: skip
# Pairs of blocks that fetch for each other. Where requests to the L2 are the limit, of all tiles these make the fewest for a product;
# and 192x192, of three consumers, fills waves that others do not: 2112 cubed is 132 of its tiles. 1800x2504x1304 takes 24.5 us by 128x192,
# one below the other, by others 27.7 or more.
LARGE = Among(256, 8200, 0.9, math.inf)
COUPLED = (
    Kernel("128x192_2x1", 128, 192, 384, 128, 4, 16, 2.02, 221, wgmma=True, cluster=(2, 1), crowd=0.15, slow_lines=1.1,
           among=Among(65, 3600, 0.6, 1.0, slanted_b=True)),
    Kernel("192x192_1x2", 192, 192, 512, 128, 4, 16, 1.98, 355, wgmma=True, boxes=3, cluster=(1, 2), crowd=0.09, among=LARGE),
    Kernel("128x256_2x1", 128, 256, 384, 128, 4, 16, 2.29, 253, wgmma=True, cluster=(2, 1), crowd=0.17, slow_lines=1.12,
           among=LARGE._replace(few=0.74, slanted=True)),
)  # fmt: skip
# Turned round, as high as one wave of an H200 asks for: 2504 cubed is 13 x 10 tiles of 208x256, 2056 cubed 12 x 11 of 176x192, 2200 cubed
# 14 x 9 of 160x256, 1800 cubed 13 x 10 of 144x192. Beside the ring: outboxes of 5, 3, 4 and 3 boxes of C of 16 rows.
# Offered where they were timed: 160x256, which asks the L2 for the least, up to two waves, and for as many where A and B are slanted;
# 144x192 up to any number: 2592 cubed is 1.9 waves of it, 52.2 us where the next best took 60.2; 176x192 from three quarters of a wave on:
# 3112x3488x1304 is 126 of it, 43.0 us for 61.7.
ONE_WAVE = Among(512, 4608, 0.95, 1.0, rows_from=1600, columns_from=1600)
FROM_ONE_WAVE = ONE_WAVE._replace(many=2.0, many_slanted=math.inf, k_to=8200)
TURNED_PAIRS = (
    Kernel("208x256_1x2", 208, 256, 384, 128, 3, 16, 2.44, 413, wgmma=True, turned=True, boxes=0, inbox=2 * 2 * 5 * 2048, cluster=(1, 2),
           crowd=0.28, among=ONE_WAVE),
    Kernel("176x192_2x1", 176, 192, 512, 128, 4, 16, 1.77, 330, wgmma=True, turned=True, boxes=0, inbox=3 * 2 * 3 * 2048, cluster=(2, 1),
           crowd=0.10, among=ONE_WAVE._replace(k_to=8200, few=0.74, columns_from=1200)),
    Kernel("160x256_2x1", 160, 256, 384, 128, 4, 16, 2.21, 428, wgmma=True, turned=True, boxes=0, inbox=2 * 4 * 2048, cluster=(2, 1),
           crowd=0.22, among=FROM_ONE_WAVE),
    Kernel("144x192_1x2", 144, 192, 512, 128, 4, 16, 1.89, 269, wgmma=True, turned=True, boxes=0, inbox=3 * 2 * 3 * 2048, cluster=(1, 2),
           crowd=0.12, slow_lines=0.88, among=ONE_WAVE._replace(many=math.inf, columns_from=1200)),
)  # fmt: skip

TILES = (
    *(*WGMMA, *BETWEEN, *PINGPONG, *COUPLED, *TURNED, *TURNED_BETWEEN, *TURNED_PAIRS),
    *(*SPLIT, *CROWDED, *NARROW, *SHORT, *LONG, *HALVES, *TWO_WIDE, *LOW_PAIRS),
)
