// The matmul kernels for tiny and skinny products by name: C (m, n) = A (m, k) B (k, n), row-major, accumulated in float32, on a
// one-dimensional grid. extra_cluster.cu has them with a K that a cluster shares.
//
// matmul_extra_<dtype>_small_gemm_<BM>x<BN>x<BK>_v<GRANULE>           a tile, K of a step, bytes of an access: small_gemm.py
// matmul_extra_<dtype>_skinny_m_16x<BN>_w<WARPS>_v<GRANULE>           16 rows of A at most, warps that share K: skinny_m.py
// matmul_extra_<dtype>_skinny_n_<N>_h<HIGH>_t<THREADS>_v<GRANULE>     N columns of B at most, sixteens of rows a warp, threads that share K:
// skinny_n.py. _v<GRANULE>a<GRANULE_A>: rows of A begin on as many bytes.
#include "matmul/extra/skinny_m.cuh"
#include "matmul/extra/skinny_n.cuh"
#include "matmul/extra/small_gemm.cuh"

#define KERNEL(name, Storage, compute, blocks_a_sm, ...)                                                                                   \
    using Tile_##name = __VA_ARGS__;                                                                                                       \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(Tile_##name::THREADS, blocks_a_sm)                                                        \
        name(const Storage *a, const Storage *b, Storage *c, long long m, long long k, long long n) {                                      \
        compute<Tile_##name>(a, b, c, m, k, n);                                                                                            \
    })

// Warps below one another.
#define SMALL(dtype, Storage, bm, bn, bk, warps_m, granule)                                                                                \
    KERNEL(matmul_extra_##dtype##_small_gemm_##bm##x##bn##x##bk##_v##granule, Storage, small_gemm_matmul, 2,                               \
           SmallGemmTile<Storage, bm, bn, bk, warps_m, granule>)
#define SMALL_FMA(bm, bn, bk, granule)                                                                                                     \
    KERNEL(matmul_extra_float32_small_gemm_##bm##x##bn##x##bk##_v##granule, float, small_gemm_matmul, 2,                                   \
           SmallGemmFmaTile<bm, bn, bk, granule>)

// Blocks an SM, steps of a warp under way at once.
#define SKINNY_M(dtype, Storage, bn, granule, blocks_a_sm, warps, steps)                                                                   \
    KERNEL(matmul_extra_##dtype##_skinny_m_16x##bn##_w##warps##_v##granule, Storage, skinny_m_matmul, blocks_a_sm,                         \
           SkinnyMTile<Storage, bn, warps, steps, granule>)

#define SKINNY_N(dtype, Storage, most, high, sharing, granule)                                                                             \
    KERNEL(matmul_extra_##dtype##_skinny_n_##most##_h##high##_t##sharing##_v##granule, Storage, skinny_n_matmul, 2,                        \
           SkinnyNTile<Storage, most, high, sharing / 32, granule>)
#define SKINNY_N_OF(dtype, Storage, most, sharing, granule, granule_a)                                                                     \
    KERNEL(matmul_extra_##dtype##_skinny_n_##most##_h2_t##sharing##_v##granule##a##granule_a, Storage, skinny_n_matmul, 2,                 \
           SkinnyNTile<Storage, most, 2, sharing / 32, granule, granule_a>)
#define SKINNY_N_BY_THREADS(dtype, Storage, most, granule)                                                                                 \
    SKINNY_N(dtype, Storage, most, 2, 32, granule) SKINNY_N(dtype, Storage, most, 2, 64, granule)                                          \
    SKINNY_N(dtype, Storage, most, 2, 128, granule) SKINNY_N(dtype, Storage, most, 2, 256, granule)
#define SKINNY_N_OF_BY_THREADS(dtype, Storage, most, granule, granule_a)                                                                   \
    SKINNY_N_OF(dtype, Storage, most, 32, granule, granule_a) SKINNY_N_OF(dtype, Storage, most, 64, granule, granule_a)                    \
    SKINNY_N_OF(dtype, Storage, most, 128, granule, granule_a) SKINNY_N_OF(dtype, Storage, most, 256, granule, granule_a)

#define HALF_KERNELS(dtype, Storage)                                                                                                       \
    SMALL(dtype, Storage, 16, 32, 64, 1, 2) SMALL(dtype, Storage, 32, 32, 64, 2, 2) SMALL(dtype, Storage, 16, 64, 64, 1, 8)                \
    SMALL(dtype, Storage, 32, 64, 64, 2, 8) SMALL(dtype, Storage, 16, 32, 128, 1, 8)                                                       \
    SKINNY_M(dtype, Storage, 32, 8, 2, 8, 3) SKINNY_M(dtype, Storage, 32, 8, 4, 4, 2) SKINNY_M(dtype, Storage, 32, 4, 2, 8, 3)             \
    SKINNY_N(dtype, Storage, 8, 1, 256, 16) SKINNY_N(dtype, Storage, 16, 1, 256, 16)                                                       \
    SKINNY_N_BY_THREADS(dtype, Storage, 8, 16) SKINNY_N_BY_THREADS(dtype, Storage, 16, 16)                                                 \
    SKINNY_N_BY_THREADS(dtype, Storage, 8, 2) SKINNY_N_BY_THREADS(dtype, Storage, 16, 2)                                                   \
    SKINNY_N_OF_BY_THREADS(dtype, Storage, 8, 2, 1) SKINNY_N_OF_BY_THREADS(dtype, Storage, 16, 2, 1)

#ifdef MATMUL_FLOAT32
SMALL_FMA(16, 32, 32, 4) SMALL_FMA(16, 64, 32, 4)
SMALL_FMA(16, 64, 32, 16) SMALL_FMA(16, 32, 64, 16)
#endif
#ifdef MATMUL_TFLOAT32
SMALL(tfloat32, float, 16, 32, 32, 1, 4) SMALL(tfloat32, float, 32, 32, 32, 2, 4)
SMALL(tfloat32, float, 16, 32, 64, 1, 16) SMALL(tfloat32, float, 32, 32, 64, 2, 16)
SKINNY_M(tfloat32, float, 32, 16, 2, 8, 3)
SKINNY_N(tfloat32, float, 8, 1, 256, 4) SKINNY_N(tfloat32, float, 16, 1, 256, 4)
SKINNY_N_BY_THREADS(tfloat32, float, 8, 4) SKINNY_N_BY_THREADS(tfloat32, float, 16, 4)
SKINNY_N_OF_BY_THREADS(tfloat32, float, 8, 4, 4) SKINNY_N_OF_BY_THREADS(tfloat32, float, 16, 4, 4)
#endif
#ifdef MATMUL_FLOAT16
HALF_KERNELS(float16, float16)
#endif
#ifdef MATMUL_BFLOAT16
HALF_KERNELS(bfloat16, bfloat16)
#endif
