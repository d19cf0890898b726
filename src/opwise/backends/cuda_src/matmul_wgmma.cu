// The matmul kernels of Hopper by name: C (m, n) = A (m, k) B (k, n), row-major, 16 bits, any m and multiples of 8 for k and n, all addresses
// on 16 bytes, all sizes below 2^31. Compiled for sm_90a and nothing else.
//
// matmul_wgmma_<dtype>_128x<BN>[_pairs]: A, B and C come as tensor maps with boxes of 128, 64 and 64 rows by 64 columns, swizzled by 128
// bytes. The grid is one-dimensional, of any size; with _pairs blocks form clusters of two, and it must be even.
#include "matmul_wgmma.cuh"

#define CLUSTER_OF_1
#define CLUSTER_OF_2 __cluster_dims__(2, 1, 1)
#define KERNEL(name, cluster, ...)                                                                                                         \
    using Tile_##name = WarpgroupTile<__VA_ARGS__, cluster>;                                                                               \
    extern "C" __global__ void CLUSTER_OF_##cluster __launch_bounds__(Tile_##name::THREADS, 1)                                             \
        name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c, long long m,   \
             long long k, long long n) {                                                                                                   \
        warpgroup_matmul<Tile_##name>(a, b, c, m, k, n);                                                                                   \
    }

// WarpgroupTile: columns of the tile, stages, blocks a cluster.
#define KERNELS(dtype)                                                                                                                     \
    KERNEL(matmul_wgmma_##dtype##_128x256_pairs, 2, dtype, 256, 4)                                                                         \
    KERNEL(matmul_wgmma_##dtype##_128x256, 1, dtype, 256, 4)                                                                               \
    KERNEL(matmul_wgmma_##dtype##_128x128_pairs, 2, dtype, 128, 6)                                                                         \
    KERNEL(matmul_wgmma_##dtype##_128x128, 1, dtype, 128, 6)

KERNELS(float16)
KERNELS(bfloat16)
