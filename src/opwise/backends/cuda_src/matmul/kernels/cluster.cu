// The matmul kernels of sm_90 for few tiles and a long K or a large B, where the 16-bit wgmma kernels cannot be used: C (m, n) = A (m, k)
// B (k, n), row-major, any m, k, n >= 1, accumulated in float32. Compiled for sm_90a only.
//
// matmul_cluster_<dtype>_<way>_<BM>x<BN>_v<GRANULE>_s<S>: the S blocks of a cluster, 1 to 16, share the K of a BM x BN tile, and
// cluster_reduce.cuh adds their sums. GRANULE as in portable.cu; way: simt (simt.cuh) or mma (mma_sync.cuh). The grid is one-dimensional,
// ceil(m / BM) * ceil(n / BN) * S blocks. cluster.py has the instances.
#include "matmul/kernels/mma_sync.cuh"
#include "matmul/kernels/simt.cuh"

#define KERNEL(name, Factor, Storage, function, s, blocks_a_sm, ...)                                                                       \
    using Tile_##name = __VA_ARGS__;                                                                                                       \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void OF_CLUSTERS_##s __launch_bounds__(Tile_##name::THREADS, blocks_a_sm)                                        \
        name(const Factor a, const Factor b, Storage *c, long long m, long long k, long long n) {                                          \
        function<Tile_##name, s>(a, b, c, m, k, n);                                                                                        \
    })
