// The matmul kernels for tiny and skinny products by name: C (m, n) = A (m, k) B (k, n), row-major, accumulated in float32, on a
// one-dimensional grid.
//
// matmul_extra_<dtype>_small_gemm_<BM>x<BN>x<BK>_v<GRANULE>           tile, K of a step, bytes of a load: small_gemm.py
// matmul_extra_<dtype>_skinny_m_16x<BN>_w<WARPS>_v<GRANULE>           at most 16 rows of A, warps that share K: skinny_m.py
// matmul_extra_<dtype>_skinny_n_<N>_h<HIGH>_t<THREADS>_v<GRANULE>     at most N columns of B, 16 HIGH rows per warp, threads that share K:
// skinny_n.py. _v<GRANULE>a<GRANULE_A>: rows of A are aligned to GRANULE_A bytes.
// matmul_extra_cluster_<dtype>_<name>_s<S>: the same with split-K over a cluster of S blocks, sm_90 only; the grid has S blocks per tile.
#include "matmul/extra/skinny_m.cuh"
#include "matmul/extra/skinny_n.cuh"
#include "matmul/extra/small_gemm.cuh"

#define KERNEL(name, Storage, compute, s, blocks_a_sm, ...)                                                                                \
    using Tile_##name = __VA_ARGS__;                                                                                                       \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void OF_CLUSTERS_##s __launch_bounds__(Tile_##name::THREADS, blocks_a_sm)                                        \
        name(const Storage *a, const Storage *b, Storage *c, long long m, long long k, long long n) {                                      \
        compute<Tile_##name, s>(a, b, c, m, k, n);                                                                                         \
    })
