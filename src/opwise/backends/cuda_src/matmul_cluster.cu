// The matmul kernels of Hopper for few tiles and a long K or a large B, where the 16-bit wgmma kernels do not come into question: C (m, n) = A
// (m, k) B (k, n), row-major, any m, k, n >= 1, accumulated in float32. Compiled for sm_90a and nothing else.
//
// matmul_cluster_<dtype>_<way>_<BM>x<BN>_v<GRANULE>_s<S>: the S blocks of a cluster, 1 to 16, have one BM x BN tile and each a part of K;
// their sums meet in matmul_meet.cuh. GRANULE is as in matmul.cu; 4a16: 16 bytes divide A's address and rows. The grid is one-dimensional,
// ceil(m / BM) * ceil(n / BN) * S blocks. The ways: simt and mma, as in matmul.cu; wgmma, as in matmul_hopper32.cu, whose factors are tensor
// maps. matmul_cluster.py chooses among the kernels and knows the same tiles. few: for 16 rows, as in matmul_few.cuh, with so many warps (w):
// matmul_few.py. columns_mma: for few columns, as in matmul_columns_mma.cuh: matmul_columns.py.
#include "matmul_columns_mma.cuh"
#include "matmul_few.cuh"
#include "matmul_groups.cuh"
#include "matmul_once.cuh"
#include "matmul_simt.cuh"
#include "matmul_tensor.cuh"
#include "matmul_wgmma_tf32.cuh"

#define OF_CLUSTERS_1
#define OF_CLUSTERS_2 __cluster_dims__(2, 1, 1)
#define OF_CLUSTERS_4 __cluster_dims__(4, 1, 1)
#define OF_CLUSTERS_8 __cluster_dims__(8, 1, 1)
#define OF_CLUSTERS_16 __cluster_dims__(16, 1, 1)
#define KERNEL(name, Factor, Storage, function, s, blocks_a_sm, ...)                                                                      \
    using Tile_##name = __VA_ARGS__;                                                                                                       \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void OF_CLUSTERS_##s __launch_bounds__(Tile_##name::THREADS, blocks_a_sm)                                        \
        name(const Factor a, const Factor b, Storage *c, long long m, long long k, long long n) {                                          \
        function<Tile_##name, s>(a, b, c, m, k, n);                                                                                        \
    })
#define MAPPED __grid_constant__ TensorMap

// Rows and columns of the tile, granule, blocks that share K, blocks a multiprocessor. SimtTile: threads in X and Y, rows and columns a
// thread, K a step, slices of K, stages. TensorTile: bytes of K a step, warps in M, N and K, stages.
#define SIMT(bm, bn, granule, s, blocks_a_sm, ...)                                                                                         \
    KERNEL(matmul_cluster_float32_simt_##bm##x##bn##_v##granule##_s##s, float *, float, simt_matmul, s, blocks_a_sm,                       \
           SimtTile<float, __VA_ARGS__, granule>)
#define SIMT_A(bm, bn, s, blocks_a_sm, ...)                                                                                                \
    KERNEL(matmul_cluster_float32_simt_##bm##x##bn##_v4a16_s##s, float *, float, simt_matmul, s, blocks_a_sm,                              \
           SimtTile<float, __VA_ARGS__, 4, 16>)
#define MMA(dtype, Storage, bm, bn, granule, s, blocks_a_sm, ...)                                                                          \
    KERNEL(matmul_cluster_##dtype##_mma_##bm##x##bn##_v##granule##_s##s, Storage *, Storage, tensor_matmul, s, blocks_a_sm,                \
           TensorTile<Storage, bm, bn, __VA_ARGS__, granule>)

// K of a step, warps below one another.
#define ONCE(dtype, Storage, bm, bn, bk, warps_m, granule, s)                                                                              \
    KERNEL(matmul_cluster_##dtype##_once_##bm##x##bn##x##bk##_v##granule##_s##s, Storage *, Storage, once_matmul, s, 2,                    \
           OnceTile<Storage, bm, bn, bk, warps_m, granule>)
#define ONCE_KERNELS(dtype, Storage)                                                                                                       \
    ONCE(dtype, Storage, 16, 32, 64, 1, 2, 4) ONCE(dtype, Storage, 16, 32, 64, 1, 2, 8)                                                    \
    ONCE(dtype, Storage, 16, 32, 128, 1, 2, 2) ONCE(dtype, Storage, 16, 32, 128, 1, 2, 8) ONCE(dtype, Storage, 32, 32, 128, 2, 2, 8)       \
    ONCE(dtype, Storage, 16, 32, 64, 1, 4, 4) ONCE(dtype, Storage, 16, 32, 64, 1, 4, 8)                                                    \
    ONCE(dtype, Storage, 16, 32, 128, 1, 4, 4) ONCE(dtype, Storage, 32, 32, 128, 2, 4, 4) ONCE(dtype, Storage, 32, 32, 128, 2, 4, 8)       \
    ONCE(dtype, Storage, 16, 32, 128, 1, 8, 4) ONCE(dtype, Storage, 16, 32, 128, 1, 8, 8)                                                  \
    ONCE(dtype, Storage, 32, 32, 128, 2, 8, 4) ONCE(dtype, Storage, 32, 32, 128, 2, 8, 8)
#define ONCE_FMA(bm, bn, bk, granule, s)                                                                                                   \
    KERNEL(matmul_cluster_float32_once_##bm##x##bn##x##bk##_v##granule##_s##s, float *, float, once_matmul, s, 2,                          \
           OnceFmaTile<bm, bn, bk, granule>)

// Columns of the tile, warps, steps of a warp under way at once.
#define FEW(dtype, Storage, bn, granule, s, blocks_a_sm, warps, turns)                                                                     \
    KERNEL(matmul_cluster_##dtype##_few_16x##bn##_w##warps##_v##granule##_s##s, Storage *, Storage, few_matmul, s, blocks_a_sm,            \
           FewTile<Storage, bn, warps, turns, granule>)

// Columns of B at most, sixteens of rows a warp, bytes of an access of B and of A, blocks that share K.
#define COLUMNS_KERNEL(dtype, Storage, most, high, granule, granule_a, granules, s)                                                        \
    KERNEL(matmul_cluster_##dtype##_columns_mma_##most##_h##high##_t256_v##granules##_s##s, Storage *, Storage, columns_mma_matmul, s, 2,  \
           ColumnsMmaTile<Storage, most, high, 8, granule, granule_a>)
#define COLUMNS_OF_TWO(dtype, Storage, most, ...)                                                                                          \
    COLUMNS_KERNEL(dtype, Storage, most, 2, __VA_ARGS__, 2) COLUMNS_KERNEL(dtype, Storage, most, 2, __VA_ARGS__, 4)                        \
    COLUMNS_KERNEL(dtype, Storage, most, 2, __VA_ARGS__, 8) COLUMNS_KERNEL(dtype, Storage, most, 2, __VA_ARGS__, 16)
#define COLUMNS(dtype, Storage, most, ...)                                                                                                 \
    COLUMNS_OF_TWO(dtype, Storage, most, __VA_ARGS__)                                                                                      \
    COLUMNS_KERNEL(dtype, Storage, most, 4, __VA_ARGS__, 4) COLUMNS_KERNEL(dtype, Storage, most, 1, __VA_ARGS__, 8)

#if MATMUL_GROUP == 0 || MATMUL_GROUP == MATMUL_FLOAT32
SIMT(4, 64, 16, 1, 3, 16, 4, 1, 4, 64, 2, 4)
SIMT(4, 64, 16, 2, 3, 16, 4, 1, 4, 64, 2, 4)
SIMT(4, 64, 16, 8, 3, 16, 4, 1, 4, 64, 2, 4)
SIMT(4, 64, 16, 16, 3, 16, 4, 1, 4, 64, 2, 4)
SIMT(16, 64, 4, 1, 3, 16, 4, 4, 4, 64, 2, 3)
SIMT(16, 64, 4, 4, 3, 16, 4, 4, 4, 64, 2, 3)
SIMT(16, 64, 4, 8, 3, 16, 4, 4, 4, 64, 2, 3)
SIMT(16, 64, 4, 16, 3, 16, 4, 4, 4, 64, 2, 3)
SIMT(64, 16, 16, 1, 3, 4, 8, 8, 4, 64, 4, 3)
SIMT(64, 16, 16, 4, 3, 4, 8, 8, 4, 64, 4, 3)
SIMT_A(64, 16, 1, 3, 4, 8, 8, 4, 64, 4, 3)
SIMT_A(64, 16, 4, 3, 4, 8, 8, 4, 64, 4, 3)
SIMT(64, 16, 4, 1, 3, 4, 8, 8, 4, 64, 4, 3)
SIMT(64, 16, 4, 4, 3, 4, 8, 8, 4, 64, 4, 3)
SIMT(64, 32, 16, 1, 2, 8, 8, 8, 4, 64, 4, 3)
SIMT_A(64, 32, 1, 2, 8, 8, 8, 4, 64, 4, 3)
SIMT(64, 32, 4, 1, 2, 8, 8, 8, 4, 64, 4, 3)
SIMT(16, 32, 16, 2, 2, 8, 4, 4, 4, 64, 4, 6)
SIMT(16, 32, 16, 8, 2, 8, 4, 4, 4, 64, 4, 6)
SIMT(16, 32, 16, 16, 2, 8, 4, 4, 4, 64, 4, 6)
SIMT(32, 32, 16, 8, 3, 8, 8, 4, 4, 32, 2, 6)
SIMT(32, 32, 16, 16, 3, 8, 8, 4, 4, 32, 2, 6)
SIMT(128, 32, 16, 2, 2, 8, 16, 8, 4, 32, 2, 4)
SIMT(32, 128, 16, 2, 2, 16, 8, 4, 8, 32, 2, 4)
SIMT(32, 32, 4, 4, 3, 8, 8, 4, 4, 32, 2, 6)
SIMT(32, 32, 4, 16, 3, 8, 8, 4, 4, 32, 2, 6)
SIMT(64, 64, 4, 2, 3, 16, 8, 8, 4, 16, 1, 6)
SIMT(64, 64, 4, 4, 3, 16, 8, 8, 4, 16, 1, 6)
ONCE_FMA(16, 32, 32, 4, 4) ONCE_FMA(16, 32, 32, 4, 8) ONCE_FMA(32, 32, 32, 4, 8)
ONCE_FMA(16, 32, 64, 4, 4) ONCE_FMA(16, 32, 64, 4, 8) ONCE_FMA(32, 32, 64, 4, 4)
ONCE_FMA(16, 32, 32, 16, 8) ONCE_FMA(16, 32, 64, 16, 4) ONCE_FMA(16, 32, 64, 16, 8) ONCE_FMA(32, 32, 64, 16, 4) ONCE_FMA(32, 32, 64, 16, 8)
#endif
#if MATMUL_GROUP == 0 || MATMUL_GROUP == MATMUL_TFLOAT32
MMA(tfloat32, float, 16, 32, 16, 2, 2, 256, 1, 1, 4, 6)
MMA(tfloat32, float, 16, 32, 16, 8, 2, 256, 1, 1, 4, 6)
MMA(tfloat32, float, 16, 32, 16, 16, 2, 256, 1, 1, 4, 6)
MMA(tfloat32, float, 32, 32, 16, 16, 3, 128, 2, 1, 2, 6)
MMA(tfloat32, float, 64, 32, 16, 2, 3, 128, 4, 1, 1, 5)
MMA(tfloat32, float, 64, 32, 16, 8, 3, 128, 4, 1, 1, 5)
MMA(tfloat32, float, 32, 32, 4, 4, 3, 128, 2, 1, 2, 6)
MMA(tfloat32, float, 32, 32, 4, 16, 3, 128, 2, 1, 2, 6)
MMA(tfloat32, float, 128, 64, 4, 2, 2, 128, 2, 2, 1, 3)
ONCE(tfloat32, float, 16, 32, 32, 1, 4, 4) ONCE(tfloat32, float, 16, 32, 32, 1, 4, 8)
ONCE(tfloat32, float, 16, 32, 64, 1, 4, 4) ONCE(tfloat32, float, 16, 32, 64, 1, 4, 8) ONCE(tfloat32, float, 32, 32, 64, 2, 4, 4)
ONCE(tfloat32, float, 16, 32, 64, 1, 16, 4) ONCE(tfloat32, float, 16, 32, 64, 1, 16, 8)
ONCE(tfloat32, float, 32, 32, 64, 2, 16, 4) ONCE(tfloat32, float, 32, 32, 64, 2, 16, 8)
ONCE(tfloat32, float, 16, 32, 128, 1, 16, 8) ONCE(tfloat32, float, 32, 32, 128, 2, 16, 8)
FEW(tfloat32, float, 32, 16, 4, 2, 8, 2)
FEW(tfloat32, float, 32, 16, 8, 2, 8, 2)
FEW(tfloat32, float, 64, 16, 8, 2, 8, 1)
COLUMNS(tfloat32, float, 8, 4, 16, 4)
COLUMNS(tfloat32, float, 16, 4, 16, 4)
COLUMNS(tfloat32, float, 8, 4, 4, 4a4)
COLUMNS(tfloat32, float, 16, 4, 4, 4a4)
// Rows of the tile, stages, and consumers where there is one, with 64 columns.
KERNEL(matmul_cluster_tfloat32_wgmma_64x128_v16_s2, MAPPED, float, tf32_matmul, 2, 1, Tf32Tile<64, 8>)
KERNEL(matmul_cluster_tfloat32_wgmma_64x128_v16_s4, MAPPED, float, tf32_matmul, 4, 1, Tf32Tile<64, 8>)
KERNEL(matmul_cluster_tfloat32_wgmma_64x128_v16_s8, MAPPED, float, tf32_matmul, 8, 1, Tf32Tile<64, 8>)
KERNEL(matmul_cluster_tfloat32_wgmma_128x128_v16_s2, MAPPED, float, tf32_matmul, 2, 1, Tf32Tile<128, 6>)
KERNEL(matmul_cluster_tfloat32_wgmma_128x128_v16_s4, MAPPED, float, tf32_matmul, 4, 1, Tf32Tile<128, 6>)
KERNEL(matmul_cluster_tfloat32_wgmma_32x128_v16_s1, MAPPED, float, tf32_matmul, 1, 2, Tf32Tile<32, 5>)
KERNEL(matmul_cluster_tfloat32_wgmma_32x128_v16_s2, MAPPED, float, tf32_matmul, 2, 2, Tf32Tile<32, 5>)
KERNEL(matmul_cluster_tfloat32_wgmma_32x64_v16_s8, MAPPED, float, tf32_matmul, 8, 2, Tf32Tile<32, 8, 1>)
KERNEL(matmul_cluster_tfloat32_wgmma_64x64_v16_s1, MAPPED, float, tf32_matmul, 1, 2, Tf32Tile<64, 6, 1>)
KERNEL(matmul_cluster_tfloat32_wgmma_64x64_v16_s2, MAPPED, float, tf32_matmul, 2, 2, Tf32Tile<64, 6, 1>)
KERNEL(matmul_cluster_tfloat32_wgmma_64x64_v16_s16, MAPPED, float, tf32_matmul, 16, 2, Tf32Tile<64, 6, 1>)
#endif
#define HALF(dtype)                                                                                                                        \
    MMA(dtype, dtype, 32, 32, 2, 16, 3, 128, 2, 1, 2, 2)                                                                                   \
    MMA(dtype, dtype, 64, 64, 2, 4, 2, 128, 2, 2, 1, 2)                                                                                    \
    MMA(dtype, dtype, 64, 64, 2, 16, 2, 128, 2, 2, 1, 2)                                                                                   \
    FEW(dtype, dtype, 32, 8, 4, 2, 8, 2) FEW(dtype, dtype, 32, 8, 8, 2, 8, 2)                                                              \
    FEW(dtype, dtype, 32, 4, 4, 2, 8, 2) FEW(dtype, dtype, 32, 4, 8, 2, 8, 2)                                                              \
    COLUMNS(dtype, dtype, 8, 16, 16, 16) COLUMNS(dtype, dtype, 16, 16, 16, 16)                                                             \
    COLUMNS(dtype, dtype, 8, 2, 16, 2) COLUMNS(dtype, dtype, 16, 2, 16, 2)                                                                 \
    COLUMNS(dtype, dtype, 8, 2, 4, 2a4) COLUMNS(dtype, dtype, 16, 2, 4, 2a4)                                                               \
    COLUMNS_OF_TWO(dtype, dtype, 8, 2, 1, 2a1) COLUMNS_OF_TWO(dtype, dtype, 16, 2, 1, 2a1)
#if MATMUL_GROUP == 0 || MATMUL_GROUP == MATMUL_FLOAT16
HALF(float16)
ONCE_KERNELS(float16, float16)
#endif
#if MATMUL_GROUP == 0 || MATMUL_GROUP == MATMUL_BFLOAT16
HALF(bfloat16)
ONCE_KERNELS(bfloat16, bfloat16)
#endif
