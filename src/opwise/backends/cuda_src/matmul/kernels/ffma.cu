// The float32 matmul kernels of sm_90: C (m, n) = A (m, k) B (k, n), row-major, m, k, n from 1 to 2^30. Compiled for sm_90a only.
//
// matmul_ffma_float32_<rows>_<BM>x<BN>_w<WARPS>_<s1 or stream_k>: the WARPS warps of a block share the K of a tile.
// A and B are tensor maps, C is an address. <rows>: `aligned`: A, B and their rows are aligned to 16 bytes, and a factor is one map;
// `residue`: rows are unaligned, and a factor is four maps (residue_maps.cuh). FfmaTile has the boxes. The grid is one-dimensional, ceil(m
// / BM) * ceil(n / BN) blocks; with stream_k as many as run at once (ffma_stream_k.cuh).
// matmul_ffma_float32_tma_128x128_8x16: aligned rows, 8 x 16 elements per thread (ffma_tma.cuh). ffma.py and tma32.py have the instances.
#include "matmul/kernels/ffma_stream_k.cuh"

// Rows and columns of the tile, warps, blocks per SM; rows and columns per thread, stages.
#define RESIDUE(bm, bn, warps, blocks_a_sm, ...)                                                                                           \
    using Tile_residue_##bm##x##bn##_w##warps = FfmaTile<bm, bn, warps, 4, __VA_ARGS__>;                                                   \
    IF_WANTED(matmul_ffma_float32_residue_##bm##x##bn##_w##warps##_s1,                                                                     \
    extern "C" __global__ void __launch_bounds__(32 * warps, blocks_a_sm) matmul_ffma_float32_residue_##bm##x##bn##_w##warps##_s1(         \
            const __grid_constant__ ResidueMaps<4> a, const __grid_constant__ ResidueMaps<4> b, float *c, long long m, long long k,        \
            long long n) {                                                                                                                 \
        ffma_matmul<Tile_residue_##bm##x##bn##_w##warps>(a, b, c, m, k, n);                                                                \
    })
#define ALIGNED_STREAM_K(bm, bn, warps, blocks_a_sm, ...)                                                                                  \
    using Tile_aligned_##bm##x##bn##_w##warps = FfmaTile<bm, bn, warps, 1, __VA_ARGS__>;                                                   \
    IF_WANTED(matmul_ffma_float32_aligned_##bm##x##bn##_w##warps##_stream_k,                                                               \
    extern "C" __global__ void __launch_bounds__(32 * warps, blocks_a_sm) matmul_ffma_float32_aligned_##bm##x##bn##_w##warps##_stream_k(   \
            const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float *c, long long m, long long k, long long n,     \
            unsigned *flags) {                                                                                                             \
        ffma_stream_k_matmul<Tile_aligned_##bm##x##bn##_w##warps>(a, b, c, m, k, n, flags);                                                \
    })

#define TMA_KERNEL(name, ...)                                                                                                              \
    using Tile_##name = __VA_ARGS__;                                                                                                       \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(Tile_##name::THREADS, 2)                                                                  \
        name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float *c, long long m, long long k, long long n) {  \
        ffma_tma_matmul<Tile_##name>(a, b, c, m, k, n);                                                                                    \
    })
