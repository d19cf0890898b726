// The TF32 matmul kernels of sm_90: C (m, n) = A (m, k) B (k, n), row-major, any m and multiples of 4 for k and n, addresses aligned to 16
// bytes, sizes up to 2^30. Compiled for sm_90a only.
//
// A and B come as tensor maps, C as an address.
// matmul_wgmma_tfloat32_<BM>x<BN>: elements are TFLOAT32, boxes of BM and 32 rows by 32 columns, swizzled by 128 bytes. The grid is
// one-dimensional, of any size: a block takes the tiles i, i + gridDim.x, ... of C.
#include "matmul/kernels/wgmma_tf32.cuh"

#define KERNEL(name, ...)                                                                                                                  \
    using Tile_##name = __VA_ARGS__;                                                                                                       \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(Tile_##name::THREADS, 1)                                                                  \
        name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float *c, long long m, long long k, long long n) {  \
        tf32_matmul<Tile_##name>(a, b, c, m, k, n);                                                                                        \
    })
