// The matmul kernels of Hopper by name: C (m, n) = A (m, k) B (k, n), row-major, 16 bits, any m and multiples of 8 for k and n, all
// addresses on 16 bytes, sizes up to 2^30. Compiled for sm_90a and nothing else.
//
// matmul_wgmma_<dtype>_128x<BN>: A, B and C come as tensor maps with boxes of 128, 64 and 64 rows by 64 columns, swizzled by 128 bytes.
// The grid is one-dimensional, of any size: a block takes the tiles i, i + gridDim.x, ... of C.
//
// matmul_wgmma_<dtype>_<BM>x<BN>_1x2, _2x1: the same in clusters of two blocks, side by side or one below the other: boxes of BM / 2 rows of A,
// or of 32 of B.
//
// matmul_wgmma_<dtype>_<BM>x<BN>_s<S>: A and B as maps with boxes of BM rows, or m where A has fewer, and BK rows, for a BN of 32 by 32
// columns, C as an address. S blocks, a cluster, share the K of a tile: the grid has S for each tile. _twice: likewise, of one, two of them a
// multiprocessor.
//
// matmul_wgmma_<dtype>_<BM>x<BN>_p2x1: likewise, with boxes of BM rows of A; two blocks, a cluster, for each two tiles, one below the other.
//
// matmul_wgmma_<dtype>_144x128: A, B and C as maps with boxes of 144, 64 and 144 rows. A block a tile.
//
// matmul_wgmma_<dtype>_208x256_1x2, 176x192_2x1, 160x256_2x1, 144x192_1x2: as those in clusters, C as a map with boxes of 16 rows.
//
// matmul_wgmma_<dtype>_held_<N>: of N columns and by mma.sync. A as a map with boxes of as many rows as all warps but one have, 16 each, B and
// C as addresses; behind the sizes how many slots there are, warps for 16 rows, such rows in a tile, and tiles. The grid is of any size.
//
// matmul_wgmma_<dtype>_pingpong_<BM>x<BN>: A, B and C as maps with boxes of BM / 2, 64 and 64 rows. The grid as the first's, in clusters of
// two blocks; _2x1: one below the other, with boxes of BM, 32 and 64 rows.
#include "matmul_held.cuh"
#include "matmul_pair.cuh"
#include "matmul_pingpong.cuh"
#include "matmul_turned.cuh"
#include "matmul_turned_pair.cuh"

// The cluster's size is the kernel's own: a plain launch then makes clusters, whichever library it goes through.
#define OF_CLUSTERS_1
#define OF_CLUSTERS_2 __cluster_dims__(2, 1, 1)
#define OF_CLUSTERS_4 __cluster_dims__(4, 1, 1)
#define OF_CLUSTERS_8 __cluster_dims__(8, 1, 1)
#define OF_CLUSTERS_16 __cluster_dims__(16, 1, 1)

#define KERNEL(name, matmul, cluster, ...)                                                                                                 \
    using Tile_##name = WarpgroupTile<cluster, __VA_ARGS__>;                                                                               \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void OF_CLUSTERS_##cluster __launch_bounds__(Tile_##name::THREADS, 1)                                            \
        name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c, long long m,   \
             long long k, long long n) {                                                                                                   \
        matmul<Tile_##name>(a, b, c, m, k, n);                                                                                             \
    })

// WarpgroupTile: a cluster's blocks, rows and columns of the tile, stages, outboxes a consumer, readers of a slot, rows of the
// cluster. As many stages as fit.
#define KERNELS(dtype)                                                                                                                     \
    KERNEL(matmul_wgmma_##dtype##_128x256, warpgroup_matmul, 1, dtype, 128, 256, 4)                                                        \
    KERNEL(matmul_wgmma_##dtype##_128x192, warpgroup_matmul, 1, dtype, 128, 192, 4)                                                        \
    KERNEL(matmul_wgmma_##dtype##_128x128, warpgroup_matmul, 1, dtype, 128, 128, 6)                                                        \
    KERNEL(matmul_wgmma_##dtype##_128x64, warpgroup_matmul, 1, dtype, 128, 64, 8)                                                          \
    KERNEL(matmul_wgmma_##dtype##_128x96, warpgroup_matmul, 1, dtype, 128, 96, 7)                                                          \
    KERNEL(matmul_wgmma_##dtype##_128x160, warpgroup_matmul, 1, dtype, 128, 160, 5)                                                        \
    KERNEL(matmul_wgmma_##dtype##_pingpong_128x96, pingpong_matmul, 2, dtype, 128, 96, 7, 2, 1)                                            \
    KERNEL(matmul_wgmma_##dtype##_pingpong_128x160, pingpong_matmul, 2, dtype, 128, 160, 5, 2, 1)                                          \
    KERNEL(matmul_wgmma_##dtype##_pingpong_128x128, pingpong_matmul, 2, dtype, 128, 128, 6, 2, 1)                                          \
    KERNEL(matmul_wgmma_##dtype##_pingpong_192x128, pingpong_matmul, 2, dtype, 192, 128, 5, 1, 1)                                          \
    KERNEL(matmul_wgmma_##dtype##_pingpong_128x128_2x1, pingpong_matmul, 2, dtype, 128, 128, 6, 2, 1, 2)                                   \
    KERNEL(matmul_wgmma_##dtype##_192x192_1x2, warpgroup_matmul, 2, dtype, 192, 192, 4, 1, 3)                                              \
    KERNEL(matmul_wgmma_##dtype##_128x192_2x1, warpgroup_matmul, 2, dtype, 128, 192, 4, 2, 2, 2)                                           \
    KERNEL(matmul_wgmma_##dtype##_128x256_2x1, warpgroup_matmul, 2, dtype, 128, 256, 4, 2, 2, 2)

#define SPLIT_KERNEL(name, dtype, bm, bn, bk, stages, s, blocks_a_sm, group)                                                               \
    using Tile_##name = SplitTile<dtype, bm, bn, bk, stages, s, blocks_a_sm, group>;                                                       \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void OF_CLUSTERS_##s __launch_bounds__(Tile_##name::THREADS, blocks_a_sm)                                        \
        name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, dtype *c, long long m, long long k, long long n) {  \
        split_matmul<Tile_##name>(a, b, c, m, k, n);                                                                                       \
    })

// SplitTile: rows and columns of the tile, K of a stage, stages, blocks that share K, blocks a multiprocessor, rows of tiles in a group.
// Groups of 4 rows of 64x128: blocks that begin together fetch 4 + 4 tiles of A and B, where groups of 16 fetch 16 + 1.
#define SPLIT_KERNELS(dtype)                                                                                                               \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x64_s1, dtype, 64, 64, 128, 6, 1, 1, 16)                                                         \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x64_twice, dtype, 64, 64, 64, 6, 1, 2, 4)                                                        \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x128_thrice, dtype, 64, 128, 64, 3, 1, 3, 4)                                                     \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x64_short, dtype, 64, 64, 64, 2, 1, 6, 4)                                                        \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x64_s2, dtype, 64, 64, 128, 6, 2, 1, 16)                                                         \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x64_s4, dtype, 64, 64, 64, 6, 4, 2, 16)                                                          \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x64_s8, dtype, 64, 64, 64, 6, 8, 2, 16)                                                          \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x64_s16, dtype, 64, 64, 64, 6, 16, 2, 16)                                                        \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x128_s1, dtype, 64, 128, 128, 4, 1, 1, 4)                                                        \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x128_s2, dtype, 64, 128, 128, 4, 2, 1, 16)                                                       \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_128x128_s2, dtype, 128, 128, 64, 6, 2, 1, 16)                                                      \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_128x192_s2, dtype, 128, 192, 64, 4, 2, 1, 16)                                                      \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_128x128_s4, dtype, 128, 128, 64, 5, 4, 1, 16)                                                      \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_128x128_s8, dtype, 128, 128, 64, 5, 8, 1, 16)                                                      \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x128_twice, dtype, 64, 128, 64, 4, 1, 2, 4)                                                      \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x32_s2, dtype, 64, 32, 64, 8, 2, 2, 16)                                                          \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x32_s4, dtype, 64, 32, 64, 8, 4, 2, 16)                                                          \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x32_s8, dtype, 64, 32, 64, 8, 8, 2, 16)                                                          \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_128x32_s1, dtype, 128, 32, 64, 5, 1, 2, 16)                                                        \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_128x32_short, dtype, 128, 32, 64, 2, 1, 4, 16)                                                     \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_128x32_s2, dtype, 128, 32, 64, 5, 2, 2, 16)

// PairTile: rows and columns of the tile, K of a stage, stages, rows of pairs in a group.
#define PAIR_KERNEL(dtype, bm, bn, bk, stages, group)                                                                                      \
    using Tile_##dtype##_##bm##x##bn##_p2x1 = PairTile<dtype, bm, bn, bk, stages, group>;                                                  \
    IF_WANTED(matmul_wgmma_##dtype##_##bm##x##bn##_p2x1,                                                                                   \
    extern "C" __global__ void OF_CLUSTERS_2 __launch_bounds__(Tile_##dtype##_##bm##x##bn##_p2x1::THREADS, 1)                              \
        matmul_wgmma_##dtype##_##bm##x##bn##_p2x1(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, dtype *c,      \
                                                  long long m, long long k, long long n) {                                                 \
        pair_matmul<Tile_##dtype##_##bm##x##bn##_p2x1>(a, b, c, m, k, n);                                                                  \
    })
#define PAIR_KERNELS(dtype) PAIR_KERNEL(dtype, 64, 128, 128, 4, 16)

// TurnedTile: rows and columns of the tile, stages; blocks a multiprocessor.
#define TURNED_KERNEL(name, dtype, blocks_a_sm, ...)                                                                                       \
    using Tile_##name = TurnedTile<dtype, __VA_ARGS__>;                                                                                    \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(Tile_##name::THREADS, blocks_a_sm)                                                        \
        name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c, long long m,   \
             long long k, long long n) {                                                                                                   \
        turned_matmul<Tile_##name>(a, b, c, m, k, n);                                                                                      \
    })
#define TURNED_SPLIT_KERNEL(name, dtype, blocks_a_sm, s, ...)                                                                              \
    using Tile_##name = TurnedTile<dtype, __VA_ARGS__>;                                                                                    \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void OF_CLUSTERS_##s __launch_bounds__(Tile_##name::THREADS, blocks_a_sm)                                        \
        name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, dtype *c, long long m, long long k, long long n) {  \
        turned_split_matmul<Tile_##name, s>(a, b, c, m, k, n);                                                                             \
    })
#define TURNED_KERNELS(dtype)                                                                                                              \
    TURNED_KERNEL(matmul_wgmma_##dtype##_96x128, dtype, 1, 96, 128, 7)                                                                     \
    TURNED_KERNEL(matmul_wgmma_##dtype##_144x128, dtype, 1, 144, 128, 6)                                                                   \
    TURNED_KERNEL(matmul_wgmma_##dtype##_160x128, dtype, 1, 160, 128, 6)                                                                   \
    TURNED_KERNEL(matmul_wgmma_##dtype##_16x128_b2, dtype, 2, 16, 128, 6)                                                                  \
    TURNED_KERNEL(matmul_wgmma_##dtype##_16x128_b3, dtype, 3, 16, 128, 4)                                                                  \
    TURNED_KERNEL(matmul_wgmma_##dtype##_16x192_b1, dtype, 1, 16, 192, 8)                                                                  \
    TURNED_SPLIT_KERNEL(matmul_wgmma_##dtype##_16x128_b2_s4, dtype, 2, 4, 16, 128, 5)

// TurnedPairTile: a cluster's blocks, rows and columns of the tile, stages, outboxes a consumer, consumers, boxes of C an outbox, rows of the
// cluster.
#define TURNED_PAIR_KERNEL(name, ...)                                                                                                      \
    using Tile_##name = TurnedPairTile<2, __VA_ARGS__>;                                                                                    \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void OF_CLUSTERS_2 __launch_bounds__(Tile_##name::THREADS, 1)                                                    \
        name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c, long long m,   \
             long long k, long long n) {                                                                                                   \
        turned_pair_matmul<Tile_##name>(a, b, c, m, k, n);                                                                                 \
    })
#define TURNED_PAIR_KERNELS(dtype)                                                                                                         \
    TURNED_PAIR_KERNEL(matmul_wgmma_##dtype##_208x256_1x2, dtype, 208, 256, 3, 2, 2, 5)                                                    \
    TURNED_PAIR_KERNEL(matmul_wgmma_##dtype##_176x192_2x1, dtype, 176, 192, 4, 2, 3, 3, 2)                                                 \
    TURNED_PAIR_KERNEL(matmul_wgmma_##dtype##_160x256_2x1, dtype, 160, 256, 4, 1, 2, 4, 2)                                                 \
    TURNED_PAIR_KERNEL(matmul_wgmma_##dtype##_144x192_1x2, dtype, 144, 192, 4, 2, 3, 3)

// HeldTile: columns of B.
#define HELD_KERNEL(dtype, columns)                                                                                                        \
    using Tile_##dtype##_held_##columns = HeldTile<dtype, columns>;                                                                        \
    IF_WANTED(matmul_wgmma_##dtype##_held_##columns,                                                                                       \
    extern "C" __global__ void __launch_bounds__(Tile_##dtype##_held_##columns::THREADS, 1)                                                \
        matmul_wgmma_##dtype##_held_##columns(const __grid_constant__ TensorMap a, const dtype *b, dtype *c, long long m, long long k,     \
                                              long long, long long stages, long long sharing, long long sixteens, long long tiles) {       \
        held_matmul(Tile_##dtype##_held_##columns(k, stages, sharing, sixteens, tiles), a, b, c, m);                                       \
    })
#define HELD_KERNELS(dtype)                                                                                                                \
    HELD_KERNEL(dtype, 8) HELD_KERNEL(dtype, 16) HELD_KERNEL(dtype, 24) HELD_KERNEL(dtype, 40) HELD_KERNEL(dtype, 56)

KERNELS(float16)
KERNELS(bfloat16)
HELD_KERNELS(float16)
HELD_KERNELS(bfloat16)
TURNED_PAIR_KERNELS(float16)
TURNED_PAIR_KERNELS(bfloat16)
SPLIT_KERNELS(float16)
SPLIT_KERNELS(bfloat16)
PAIR_KERNELS(float16)
PAIR_KERNELS(bfloat16)
TURNED_KERNELS(float16)
TURNED_KERNELS(bfloat16)
