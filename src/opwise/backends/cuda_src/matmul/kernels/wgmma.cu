// The 16-bit matmul kernels of sm_90: C (m, n) = A (m, k) B (k, n), row-major, any m and multiples of 8 for k and n, addresses aligned to
// 16 bytes, sizes up to 2^30. Compiled for sm_90a only. wgmma.py has the instances.
//
// matmul_wgmma_<dtype>_128x<BN>: A, B and C are tensor maps with boxes of 128, 64 and 64 rows by 64 columns, with the 128-byte swizzle.
// Persistent: a one-dimensional grid of any size; a block has the tiles i, i + gridDim.x, ... of C.
// matmul_wgmma_<dtype>_<BM>x<BN>_1x2: the same in clusters of two blocks side by side, with boxes of BM / 2 rows of A; B's and C's have 32
// columns if 64 do not divide BN.
// matmul_wgmma_<dtype>_<BM>x<BN>_s<S>: A and B as maps with boxes of min(BM, m) and BK rows, C as an address. Split-K over a cluster of S
// blocks: the grid has S blocks per tile.
// matmul_wgmma_<dtype>_144x128: A, B and C as maps with boxes of 144, 64 and 144 rows. One block per tile.
// matmul_wgmma_<dtype>_pingpong_<BM>x<BN>: persistent, in clusters of two; A, B and C as maps with boxes of BM / 2, 64 and 64 rows.
// ..._nt: B is the transpose of a row-major matrix (n, k), with boxes of BN rows by 64 columns.
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

#define SPLIT_KERNEL(name, dtype, bm, bn, bk, stages, s, blocks_a_sm, ...)                                                                 \
    using Tile_##name = SplitKTile<dtype, bm, bn, bk, stages, s, blocks_a_sm, __VA_ARGS__>;                                                \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void OF_CLUSTERS_##s __launch_bounds__(Tile_##name::THREADS, blocks_a_sm)                                        \
        name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, dtype *c, long long m, long long k, long long n) {  \
        split_k_matmul<Tile_##name>(a, b, c, m, k, n);                                                                                     \
    })

#define SWAP_AB_KERNEL(name, dtype, blocks_a_sm, ...)                                                                                      \
    using Tile_##name = SwapTile<dtype, __VA_ARGS__>;                                                                                      \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(Tile_##name::THREADS, blocks_a_sm)                                                        \
        name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c, long long m,   \
             long long k, long long n) {                                                                                                   \
        swap_ab_matmul<Tile_##name>(a, b, c, m, k, n);                                                                                     \
    })
