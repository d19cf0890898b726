// The matmul kernels of sm_90 for 16 bits and TF32 with unaligned rows: C (m, n) = A (m, k) B (k, n), row-major, any m, k, n from 1 to
// 2^30, accumulated in float32. Compiled for sm_90a only.
//
// matmul_unaligned_tma_<dtype>_<BM>_s<S>: A and B come as maps of classes of rows (residue_maps.cuh), swizzled by 128 bytes: of A boxes of
// BM rows, of B of 8. A tile has BM rows of one class and UnalignedTile::BN columns; the S blocks of a cluster share its K. S = 1:
// persistent, a grid of any size; else a cluster per tile.
// matmul_unaligned_tma_<dtype>_<BM>_s<S>_straight: a tile's rows are consecutive. A's boxes have BM / classes rows of each class, are 16
// bytes wider, and are not swizzled. unaligned_tma.py has the instances.
#include "matmul/extra/unaligned_tma.cuh"

#define KERNEL(name, Storage, s, ...)                                                                                                      \
    IF_WANTED(name,                                                                                                                        \
              using Tile_##name = __VA_ARGS__;                                                                                             \
              extern "C" __global__ void OF_CLUSTERS_##s __launch_bounds__(Tile_##name::THREADS, 1)                                        \
                  name(const __grid_constant__ ResidueMaps<16 / sizeof(Storage)> a,                                                        \
                       const __grid_constant__ ResidueMaps<16 / sizeof(Storage)> b, Storage *c, long long m, long long k, long long n) {   \
                  unaligned_tma_matmul<Tile_##name, s>(a, b, c, m, k, n);                                                                  \
              })
