// The matmul kernels of Hopper for few tiles and a long K or a large B, where the 16-bit wgmma kernels do not come into question: C (m, n) = A
// (m, k) B (k, n), row-major, any m, k, n >= 1, accumulated in float32. Compiled for sm_90a and nothing else.
//
// matmul_cluster_<dtype>_<way>_<BM>x<BN>_v<GRANULE>_s<S>: the S blocks of a cluster, 1 to 16, have one BM x BN tile and each a part of K;
// common/cluster_reduce.cuh adds up their sums. GRANULE is as in portable.cu. The grid is one-dimensional, ceil(m / BM) * ceil(n / BN) * S
// blocks. The ways: simt and mma, as in portable.cu; wgmma, as in wgmma_tf32.cu, whose factors are tensor maps. cluster.py has the same tiles.
#include "matmul/kernels/mma_sync.cuh"
#include "matmul/kernels/simt.cuh"
#include "matmul/kernels/wgmma_tf32.cuh"

#define KERNEL(name, Factor, Storage, function, s, blocks_a_sm, ...)                                                                       \
    using Tile_##name = __VA_ARGS__;                                                                                                       \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void OF_CLUSTERS_##s __launch_bounds__(Tile_##name::THREADS, blocks_a_sm)                                        \
        name(const Factor a, const Factor b, Storage *c, long long m, long long k, long long n) {                                          \
        function<Tile_##name, s>(a, b, c, m, k, n);                                                                                        \
    })
#define MAPPED __grid_constant__ TensorMap

// Rows and columns of the tile, granule, blocks that share K, blocks a multiprocessor. SimtTile: threads in X and Y, rows and columns a
// thread, K a step, slices of K, stages. MmaTile: bytes of K a step, warps in M, N and K, stages.
#define SIMT(bm, bn, granule, s, blocks_a_sm, ...)                                                                                         \
    KERNEL(matmul_cluster_float32_simt_##bm##x##bn##_v##granule##_s##s, float *, float, simt_matmul, s, blocks_a_sm,                       \
           SimtTile<float, __VA_ARGS__, granule>)
#define MMA(dtype, Storage, bm, bn, granule, s, blocks_a_sm, ...)                                                                          \
    KERNEL(matmul_cluster_##dtype##_mma_##bm##x##bn##_v##granule##_s##s, Storage *, Storage, mma_sync_matmul, s, blocks_a_sm,              \
           MmaTile<Storage, bm, bn, __VA_ARGS__, granule>)

#ifdef MATMUL_FLOAT32
SIMT(4, 64, 16, 8, 3, 16, 4, 1, 4, 64, 2, 4) SIMT(16, 64, 4, 4, 3, 16, 4, 4, 4, 64, 2, 3)
SIMT(16, 64, 4, 16, 3, 16, 4, 4, 4, 64, 2, 3) SIMT(64, 16, 16, 4, 3, 4, 8, 8, 4, 64, 4, 3)
SIMT(64, 16, 4, 1, 3, 4, 8, 8, 4, 64, 4, 3) SIMT(64, 16, 4, 4, 3, 4, 8, 8, 4, 64, 4, 3)
SIMT(64, 32, 16, 1, 2, 8, 8, 8, 4, 64, 4, 3) SIMT(64, 32, 4, 1, 2, 8, 8, 8, 4, 64, 4, 3)
SIMT(16, 32, 16, 2, 2, 8, 4, 4, 4, 64, 4, 6) SIMT(16, 32, 16, 16, 2, 8, 4, 4, 4, 64, 4, 6)
SIMT(32, 32, 16, 8, 3, 8, 8, 4, 4, 32, 2, 6) SIMT(32, 32, 16, 16, 3, 8, 8, 4, 4, 32, 2, 6)
SIMT(32, 32, 4, 4, 3, 8, 8, 4, 4, 32, 2, 6) SIMT(32, 32, 4, 16, 3, 8, 8, 4, 4, 32, 2, 6)
SIMT(64, 64, 4, 2, 3, 16, 8, 8, 4, 16, 1, 6)
#endif
#ifdef MATMUL_TFLOAT32
MMA(tfloat32, float, 16, 32, 16, 2, 2, 256, 1, 1, 4, 6) MMA(tfloat32, float, 16, 32, 16, 8, 2, 256, 1, 1, 4, 6)
MMA(tfloat32, float, 16, 32, 16, 16, 2, 256, 1, 1, 4, 6) MMA(tfloat32, float, 32, 32, 16, 16, 3, 128, 2, 1, 2, 6)
MMA(tfloat32, float, 64, 32, 16, 2, 3, 128, 4, 1, 1, 5) MMA(tfloat32, float, 32, 32, 4, 16, 3, 128, 2, 1, 2, 6)
// Rows of the tile, stages, and consumers where there is one, with 64 columns.
KERNEL(matmul_cluster_tfloat32_wgmma_64x128_v16_s2, MAPPED, float, tf32_matmul, 2, 1, Tf32Tile<64, 8>)
KERNEL(matmul_cluster_tfloat32_wgmma_64x128_v16_s4, MAPPED, float, tf32_matmul, 4, 1, Tf32Tile<64, 8>)
KERNEL(matmul_cluster_tfloat32_wgmma_64x128_v16_s8, MAPPED, float, tf32_matmul, 8, 1, Tf32Tile<64, 8>)
KERNEL(matmul_cluster_tfloat32_wgmma_128x128_v16_s4, MAPPED, float, tf32_matmul, 4, 1, Tf32Tile<128, 6>)
KERNEL(matmul_cluster_tfloat32_wgmma_64x64_v16_s1, MAPPED, float, tf32_matmul, 1, 2, Tf32Tile<64, 6, 1>)
KERNEL(matmul_cluster_tfloat32_wgmma_64x64_v16_s16, MAPPED, float, tf32_matmul, 16, 2, Tf32Tile<64, 6, 1>)
#endif
#ifdef MATMUL_FLOAT16
MMA(float16, float16, 32, 32, 2, 16, 3, 128, 2, 1, 2, 2) MMA(float16, float16, 64, 64, 2, 4, 2, 128, 2, 2, 1, 2)
#endif
#ifdef MATMUL_BFLOAT16
MMA(bfloat16, bfloat16, 32, 32, 2, 16, 3, 128, 2, 1, 2, 2) MMA(bfloat16, bfloat16, 64, 64, 2, 4, 2, 128, 2, 2, 1, 2)
#endif
