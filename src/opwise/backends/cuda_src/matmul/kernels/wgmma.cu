// The matmul kernels of Hopper by name: C (m, n) = A (m, k) B (k, n), row-major, 16 bits, any m and multiples of 8 for k and n, all
// addresses on 16 bytes, sizes up to 2^30. Compiled for sm_90a and nothing else.
//
// matmul_wgmma_<dtype>_128x<BN>: A, B and C come as tensor maps with boxes of 128, 64 and 64 rows by 64 columns, swizzled by 128 bytes.
// The grid is one-dimensional, of any size: a block takes the tiles i, i + gridDim.x, ... of C.
// matmul_wgmma_<dtype>_<BM>x<BN>_1x2, _2x1: the same in clusters of two blocks, side by side or one below the other: boxes of BM / 2 rows of A,
// or of 32 of B.
// matmul_wgmma_<dtype>_<BM>x<BN>_s<S>: A and B as maps with boxes of BM rows, or m where A has fewer, and BK rows, for a BN of 32 by 32
// columns, C as an address. S blocks, a cluster, share the K of a tile: the grid has S for each tile.
// matmul_wgmma_<dtype>_144x128: A, B and C as maps with boxes of 144, 64 and 144 rows. A block a tile.
// matmul_wgmma_<dtype>_pingpong_<BM>x<BN>: A, B and C as maps with boxes of BM / 2, 64 and 64 rows. The grid as the first's, in clusters of
// two blocks.
#include "matmul/kernels/pingpong.cuh"
#include "matmul/kernels/swap_ab.cuh"

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
    KERNEL(matmul_wgmma_##dtype##_pingpong_128x96, pingpong_matmul, 2, dtype, 128, 96, 7, 2, 1)                                            \
    KERNEL(matmul_wgmma_##dtype##_pingpong_128x128, pingpong_matmul, 2, dtype, 128, 128, 6, 2, 1)                                          \
    KERNEL(matmul_wgmma_##dtype##_pingpong_192x128, pingpong_matmul, 2, dtype, 192, 128, 5, 1, 1)                                          \
    KERNEL(matmul_wgmma_##dtype##_192x192_1x2, warpgroup_matmul, 2, dtype, 192, 192, 4, 1, 3)                                              \
    KERNEL(matmul_wgmma_##dtype##_128x256_2x1, warpgroup_matmul, 2, dtype, 128, 256, 4, 2, 2, 2)

#define SPLIT_KERNEL(name, dtype, bm, bn, bk, stages, s, blocks_a_sm, group)                                                               \
    using Tile_##name = SplitKTile<dtype, bm, bn, bk, stages, s, blocks_a_sm, group>;                                                      \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void OF_CLUSTERS_##s __launch_bounds__(Tile_##name::THREADS, blocks_a_sm)                                        \
        name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, dtype *c, long long m, long long k, long long n) {  \
        split_k_matmul<Tile_##name>(a, b, c, m, k, n);                                                                                     \
    })

// SplitKTile: rows and columns of the tile, K of a stage, stages, blocks that share K, blocks a multiprocessor, rows of tiles in a group.
// Groups of 4 rows of 64x128: blocks that begin together fetch 4 + 4 tiles of A and B, where groups of 16 fetch 16 + 1.
#define SPLIT_KERNELS(dtype)                                                                                                               \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x64_s1, dtype, 64, 64, 128, 6, 1, 1, 16)                                                         \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x64_s2, dtype, 64, 64, 128, 6, 2, 1, 16)                                                         \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x64_s4, dtype, 64, 64, 64, 6, 4, 2, 16)                                                          \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x64_s8, dtype, 64, 64, 64, 6, 8, 2, 16)                                                          \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x64_s16, dtype, 64, 64, 64, 6, 16, 2, 16)                                                        \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x128_s1, dtype, 64, 128, 128, 4, 1, 1, 4)                                                        \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x128_s2, dtype, 64, 128, 128, 4, 2, 1, 16)                                                       \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_128x192_s2, dtype, 128, 192, 64, 4, 2, 1, 16)                                                      \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_128x128_s4, dtype, 128, 128, 64, 5, 4, 1, 16)                                                      \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_128x128_s8, dtype, 128, 128, 64, 5, 8, 1, 16)                                                      \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x32_s4, dtype, 64, 32, 64, 8, 4, 2, 16)                                                          \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_64x32_s8, dtype, 64, 32, 64, 8, 8, 2, 16)                                                          \
    SPLIT_KERNEL(matmul_wgmma_##dtype##_128x32_s1, dtype, 128, 32, 64, 5, 1, 2, 16)

// SwapTile: rows and columns of the tile, stages; blocks a multiprocessor.
#define SWAP_AB_KERNEL(name, dtype, blocks_a_sm, ...)                                                                                      \
    using Tile_##name = SwapTile<dtype, __VA_ARGS__>;                                                                                      \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(Tile_##name::THREADS, blocks_a_sm)                                                        \
        name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c, long long m,   \
             long long k, long long n) {                                                                                                   \
        swap_ab_matmul<Tile_##name>(a, b, c, m, k, n);                                                                                     \
    })
#define SWAP_AB_KERNELS(dtype)                                                                                                             \
    SWAP_AB_KERNEL(matmul_wgmma_##dtype##_144x128, dtype, 1, 144, 128, 6)                                                                  \
    SWAP_AB_KERNEL(matmul_wgmma_##dtype##_16x128_b2, dtype, 2, 16, 128, 6)                                                                 \
    SWAP_AB_KERNEL(matmul_wgmma_##dtype##_16x128_b3, dtype, 3, 16, 128, 4)

KERNELS(float16)
KERNELS(bfloat16)
SPLIT_KERNELS(float16)
SPLIT_KERNELS(bfloat16)
SWAP_AB_KERNELS(float16)
SWAP_AB_KERNELS(bfloat16)
