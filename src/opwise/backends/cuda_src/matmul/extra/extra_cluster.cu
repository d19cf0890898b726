// The matmul kernels for tiny and skinny products whose K the S blocks of a cluster share, by name. Compiled for sm_90a and nothing else.
//
// matmul_extra_cluster_<dtype>_<name>_s<S>: as matmul_extra_<dtype>_<name> in extra.cu. The grid has S blocks for each tile.
#include "matmul/extra/skinny_m.cuh"
#include "matmul/extra/skinny_n.cuh"
#include "matmul/extra/small_gemm.cuh"

#define KERNEL(name, Storage, compute, s, ...)                                                                                             \
    using Tile_##name = __VA_ARGS__;                                                                                                       \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void OF_CLUSTERS_##s __launch_bounds__(Tile_##name::THREADS, 2)                                                  \
        name(const Storage *a, const Storage *b, Storage *c, long long m, long long k, long long n) {                                      \
        compute<Tile_##name, s>(a, b, c, m, k, n);                                                                                         \
    })

#define SMALL(dtype, Storage, bm, bn, bk, warps_m, granule, s)                                                                             \
    KERNEL(matmul_extra_cluster_##dtype##_small_gemm_##bm##x##bn##x##bk##_v##granule##_s##s, Storage, small_gemm_matmul, s,                \
           SmallGemmTile<Storage, bm, bn, bk, warps_m, granule>)
#define SMALL_FMA(bm, bn, bk, granule, s)                                                                                                  \
    KERNEL(matmul_extra_cluster_float32_small_gemm_##bm##x##bn##x##bk##_v##granule##_s##s, float, small_gemm_matmul, s,                    \
           SmallGemmFmaTile<bm, bn, bk, granule>)
#define SKINNY_M(dtype, Storage, bn, granule, warps, steps, s)                                                                             \
    KERNEL(matmul_extra_cluster_##dtype##_skinny_m_16x##bn##_w##warps##_v##granule##_s##s, Storage, skinny_m_matmul, s,                    \
           SkinnyMTile<Storage, bn, warps, steps, granule>)
#define SKINNY_N(dtype, Storage, most, high, granule, granule_a, granules, s)                                                              \
    KERNEL(matmul_extra_cluster_##dtype##_skinny_n_##most##_h##high##_t256_v##granules##_s##s, Storage, skinny_n_matmul, s,                \
           SkinnyNTile<Storage, most, high, 8, granule, granule_a>)
#define SKINNY_N_OF_TWO(dtype, Storage, most, ...)                                                                                         \
    SKINNY_N(dtype, Storage, most, 2, __VA_ARGS__, 4) SKINNY_N(dtype, Storage, most, 2, __VA_ARGS__, 8)
#define SKINNY_N_OF_ALL(dtype, Storage, most, ...)                                                                                         \
    SKINNY_N_OF_TWO(dtype, Storage, most, __VA_ARGS__) SKINNY_N(dtype, Storage, most, 1, __VA_ARGS__, 8)

#define HALF_KERNELS(dtype, Storage)                                                                                                       \
    SMALL(dtype, Storage, 16, 32, 128, 1, 2, 8) SMALL(dtype, Storage, 16, 32, 128, 1, 8, 8)                                                \
    SKINNY_M(dtype, Storage, 32, 8, 8, 2, 8) SKINNY_M(dtype, Storage, 32, 4, 8, 2, 8)                                                      \
    SKINNY_N_OF_ALL(dtype, Storage, 8, 16, 16, 16) SKINNY_N_OF_ALL(dtype, Storage, 16, 16, 16, 16)                                         \
    SKINNY_N_OF_ALL(dtype, Storage, 8, 2, 16, 2) SKINNY_N_OF_ALL(dtype, Storage, 16, 2, 16, 2)                                             \
    SKINNY_N_OF_TWO(dtype, Storage, 8, 2, 1, 2a1) SKINNY_N_OF_TWO(dtype, Storage, 16, 2, 1, 2a1)

#ifdef MATMUL_FLOAT32
SMALL_FMA(16, 32, 64, 4, 8) SMALL_FMA(32, 32, 64, 16, 4) SMALL_FMA(16, 32, 64, 16, 8)
#endif
#ifdef MATMUL_TFLOAT32
SMALL(tfloat32, float, 16, 32, 64, 1, 4, 8) SMALL(tfloat32, float, 16, 32, 64, 1, 16, 8)
SKINNY_M(tfloat32, float, 32, 16, 8, 2, 8)
SKINNY_N_OF_ALL(tfloat32, float, 8, 4, 16, 4) SKINNY_N_OF_ALL(tfloat32, float, 16, 4, 16, 4)
SKINNY_N_OF_ALL(tfloat32, float, 8, 4, 4, 4a4) SKINNY_N_OF_ALL(tfloat32, float, 16, 4, 4, 4a4)
#endif
#ifdef MATMUL_FLOAT16
HALF_KERNELS(float16, float16)
#endif
#ifdef MATMUL_BFLOAT16
HALF_KERNELS(bfloat16, bfloat16)
#endif
