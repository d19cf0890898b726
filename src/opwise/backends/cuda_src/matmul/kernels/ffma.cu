// The float32 matmul kernels of Hopper whose warps share K: C (m, n) = A (m, k) B (k, n), row-major, m, k, n from 1 to 2^30. Compiled for
// sm_90a and nothing else.
//
// matmul_ffma_float32_<rows>_<BM>x<BN>_w<WARPS>_s<S>: a block of WARPS warps has one tile, of which every warp takes steps of K, and the S
// blocks of a cluster, if there are several, have the same tile. A and B come as tensor maps, C as an address. <rows>: `even` ones begin on
// 16 bytes, as A and B do, and a factor is one map; `any` begin anywhere, and a factor is four (residue_maps.cuh); `words` do, too, but B is
// an address. Boxes are as FfmaTile has them. The grid is one-dimensional, ceil(m / BM) * ceil(n / BN) * S blocks. ffma.py
// chooses among the kernels and knows the same tiles.
#include "matmul/kernels/ffma_stream_k.cuh"

#define KERNEL(name, OfA, OfB, s, blocks_a_sm, ...)                                                                                        \
    using Tile_##name = __VA_ARGS__;                                                                                                       \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void OF_CLUSTERS_##s __launch_bounds__(Tile_##name::THREADS, blocks_a_sm)                                        \
        name(const __grid_constant__ OfA a, OfB b, float *c, long long m, long long k, long long n) {                                      \
        ffma_matmul<Tile_##name, s>(a, b, c, m, k, n);                                                                                     \
    })
// Rows and columns of the tile, warps, blocks that share K, blocks a multiprocessor; rows and columns a thread, stages.
#define RESIDUE(bm, bn, warps, s, blocks_a_sm, ...)                                                                                        \
    KERNEL(matmul_ffma_float32_residue_##bm##x##bn##_w##warps##_s##s, ResidueMaps<4>, const __grid_constant__ ResidueMaps<4>, s, blocks_a_sm, \
           FfmaTile<bm, bn, warps, 4, __VA_ARGS__>)
#define ALIGNED(bm, bn, warps, s, blocks_a_sm, ...)                                                                                        \
    KERNEL(matmul_ffma_float32_aligned_##bm##x##bn##_w##warps##_s##s, TensorMap, const __grid_constant__ TensorMap, s, blocks_a_sm,        \
           FfmaTile<bm, bn, warps, 1, __VA_ARGS__>)
// The rows of B come word by word, from an address.
#define WORDS(bm, bn, warps, s, blocks_a_sm, ...)                                                                                          \
    KERNEL(matmul_ffma_float32_words_##bm##x##bn##_w##warps##_s##s, ResidueMaps<4>, const float *, s, blocks_a_sm,                         \
           FfmaTile<bm, bn, warps, 4, __VA_ARGS__, true>)

ALIGNED(64, 64, 8, 1, 1, 8, 16, 3)
ALIGNED(64, 64, 8, 4, 1, 8, 16, 3)
ALIGNED(64, 80, 8, 2, 1, 8, 20, 3)
ALIGNED(64, 80, 8, 8, 1, 8, 20, 3)
RESIDUE(64, 64, 8, 1, 1, 8, 16, 2)
RESIDUE(64, 64, 2, 1, 4, 8, 16, 2)
WORDS(64, 80, 8, 3, 1, 8, 20, 2)
WORDS(48, 96, 8, 8, 1, 12, 12, 2)

// The same, of blocks of the whole grid (ffma_stream_k.cuh).
#define STREAM_K(rows, OfB, bm, bn, warps, blocks_a_sm, ...)                                                                               \
    using Tile_##rows##_##bm##x##bn##_w##warps##_stream_k = __VA_ARGS__;                                                                   \
    IF_WANTED(matmul_ffma_float32_##rows##_##bm##x##bn##_w##warps##_stream_k,                                                              \
    extern "C" __global__ void __launch_bounds__(32 * warps, blocks_a_sm) matmul_ffma_float32_##rows##_##bm##x##bn##_w##warps##_stream_k(  \
            OF_A_##rows a, OfB b, float *c, long long m, long long k, long long n, unsigned *flags) {                                      \
        ffma_stream_k_matmul<Tile_##rows##_##bm##x##bn##_w##warps##_stream_k>(a, b, c, m, k, n, flags);                                    \
    })
#define OF_A_aligned const __grid_constant__ TensorMap
#define OF_A_words const __grid_constant__ ResidueMaps<4>
#define ALIGNED_STREAM_K(bm, bn, warps, blocks_a_sm, ...)                                                                                  \
    STREAM_K(aligned, const __grid_constant__ TensorMap, bm, bn, warps, blocks_a_sm, FfmaTile<bm, bn, warps, 1, __VA_ARGS__>)
#define WORDS_STREAM_K(bm, bn, warps, blocks_a_sm, ...)                                                                                    \
    STREAM_K(words, const float *, bm, bn, warps, blocks_a_sm, FfmaTile<bm, bn, warps, 4, __VA_ARGS__, true>)

ALIGNED_STREAM_K(64, 64, 4, 2, 8, 16, 3)
WORDS_STREAM_K(64, 80, 4, 2, 8, 20, 2)
WORDS_STREAM_K(48, 96, 4, 2, 12, 12, 2)

// By TMA, a thread 8 x 16 of a tile of 128 x 128: rows and columns a thread, k of a turn of its loop. C is an address.
#define TMA_KERNEL(name, ...)                                                                                                              \
    using Tile_##name = __VA_ARGS__;                                                                                                       \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(Tile_##name::THREADS, 2)                                                                  \
        name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float *c, long long m, long long k, long long n) {  \
        ffma_tma_matmul<Tile_##name>(a, b, c, m, k, n);                                                                                    \
    })
TMA_KERNEL(matmul_ffma_float32_tma_128x128_8x16, FfmaTmaTile<8, 16, 8>)
