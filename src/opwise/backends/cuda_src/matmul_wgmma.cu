// The matmul kernels of Hopper by name: C (m, n) = A (m, k) B (k, n), row-major, 16 bits, any m and multiples of 8 for k and n, all
// addresses on 16 bytes, sizes up to 2^30. Compiled for sm_90a and nothing else.
//
// matmul_wgmma_<dtype>_128x<BN>: A, B and C come as tensor maps with boxes of 128, 64 and 64 rows by 64 columns, swizzled by 128 bytes.
// The grid is one-dimensional, of any size: a block takes the tiles i, i + gridDim.x, ... of C.
#include "matmul_wgmma.cuh"

#define KERNEL(name, ...)                                                                                                                  \
    using Tile_##name = WarpgroupTile<__VA_ARGS__>;                                                                                        \
    extern "C" __global__ void __launch_bounds__(Tile_##name::THREADS, 1)                                                                  \
        name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c, long long m,   \
             long long k, long long n) {                                                                                                   \
        warpgroup_matmul<Tile_##name>(a, b, c, m, k, n);                                                                                   \
    }

// WarpgroupTile: columns of the tile, stages. As many stages as fit.
#define KERNELS(dtype)                                                                                                                     \
    KERNEL(matmul_wgmma_##dtype##_128x256, dtype, 256, 4)                                                                                  \
    KERNEL(matmul_wgmma_##dtype##_128x192, dtype, 192, 4)                                                                                  \
    KERNEL(matmul_wgmma_##dtype##_128x128, dtype, 128, 6)                                                                                  \
    KERNEL(matmul_wgmma_##dtype##_128x64, dtype, 64, 8)

KERNELS(float16)
KERNELS(bfloat16)
