// The matmul kernels of Hopper for few tiles and a long K or a large B, where the 16-bit wgmma kernels do not come into question: C (m, n) = A
// (m, k) B (k, n), row-major, any m, k, n >= 1, accumulated in float32. Compiled for sm_90a and nothing else.
//
// matmul_cluster_<dtype>_<way>_<BM>x<BN>_v<GRANULE>_s<S>: the S blocks of a cluster, 1 to 16, have one BM x BN tile and each a part of K;
// matmul/common/cluster_reduce.cuh adds up their sums. GRANULE is as in portable.cu, and so are the ways, simt and mma. The grid is one-dimensional,
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
