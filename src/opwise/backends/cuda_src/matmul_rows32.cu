// The float32 matmul kernels of Hopper whose warps share K: C (m, n) = A (m, k) B (k, n), row-major, m, k, n from 1 to 2^30. Compiled for
// sm_90a and nothing else.
//
// matmul_rows_float32_<rows>_<BM>x<BN>_w<WARPS>_s<S>: a block of WARPS warps has one tile, of which every warp takes steps of K, and the S
// blocks of a cluster, if there are several, have the same tile. A and B come as tensor maps, C as an address. <rows>: `even` ones begin on
// 16 bytes, as A and B do, and a factor is one map; `any` begin anywhere, and a factor is four (matmul_rows.cuh); `words` do, too, but B is
// an address. Boxes are as RowsTile has them. The grid is one-dimensional, ceil(m / BM) * ceil(n / BN) * S blocks. matmul_rows32.py
// chooses among the kernels and knows the same tiles.
#include "matmul_fma_shares.cuh"

#define OF_CLUSTERS_1
#define OF_CLUSTERS_2 __cluster_dims__(2, 1, 1)
#define OF_CLUSTERS_3 __cluster_dims__(3, 1, 1)
#define OF_CLUSTERS_4 __cluster_dims__(4, 1, 1)
#define OF_CLUSTERS_6 __cluster_dims__(6, 1, 1)
#define OF_CLUSTERS_8 __cluster_dims__(8, 1, 1)
#define OF_CLUSTERS_16 __cluster_dims__(16, 1, 1)
#define KERNEL(name, OfA, OfB, s, blocks_a_sm, ...)                                                                                        \
    using Tile_##name = __VA_ARGS__;                                                                                                       \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void OF_CLUSTERS_##s __launch_bounds__(Tile_##name::THREADS, blocks_a_sm)                                        \
        name(const __grid_constant__ OfA a, OfB b, float *c, long long m, long long k, long long n) {                                      \
        fma_rows_matmul<Tile_##name, s>(a, b, c, m, k, n);                                                                                 \
    })
// Rows and columns of the tile, warps, blocks that share K, blocks a multiprocessor; rows and columns a thread, stages.
#define ANY(bm, bn, warps, s, blocks_a_sm, ...)                                                                                            \
    KERNEL(matmul_rows_float32_any_##bm##x##bn##_w##warps##_s##s, RowClasses<4>, const __grid_constant__ RowClasses<4>, s, blocks_a_sm,    \
           RowsTile<bm, bn, warps, 4, __VA_ARGS__>)
#define EVEN(bm, bn, warps, s, blocks_a_sm, ...)                                                                                           \
    KERNEL(matmul_rows_float32_even_##bm##x##bn##_w##warps##_s##s, TensorMap, const __grid_constant__ TensorMap, s, blocks_a_sm,           \
           RowsTile<bm, bn, warps, 1, __VA_ARGS__>)
// The rows of B come word by word, from an address.
#define WORDS(bm, bn, warps, s, blocks_a_sm, ...)                                                                                          \
    KERNEL(matmul_rows_float32_words_##bm##x##bn##_w##warps##_s##s, RowClasses<4>, const float *, s, blocks_a_sm,                          \
           RowsTile<bm, bn, warps, 4, __VA_ARGS__, true>)

WORDS(64, 64, 8, 1, 1, 8, 16, 3)
WORDS(64, 64, 4, 1, 2, 8, 16, 3)
WORDS(48, 64, 4, 1, 2, 12, 8, 3)
WORDS(64, 80, 8, 2, 1, 8, 20, 2)
WORDS(64, 80, 8, 3, 1, 8, 20, 2)
WORDS(48, 96, 8, 3, 1, 12, 12, 2)
WORDS(96, 48, 8, 4, 1, 12, 12, 2)
WORDS(64, 80, 8, 6, 1, 8, 20, 2)
WORDS(64, 80, 8, 16, 1, 8, 20, 2)
ANY(64, 64, 8, 1, 1, 8, 16, 2)
ANY(64, 64, 4, 1, 2, 8, 16, 2)
ANY(64, 64, 2, 1, 4, 8, 16, 2)
EVEN(64, 64, 8, 1, 1, 8, 16, 3)
EVEN(64, 64, 8, 2, 1, 8, 16, 3)
EVEN(64, 64, 8, 6, 1, 8, 16, 3)
EVEN(32, 128, 8, 6, 1, 8, 16, 2)
EVEN(128, 32, 8, 6, 1, 16, 8, 2)
WORDS(48, 96, 8, 8, 1, 12, 12, 2)
WORDS(48, 96, 8, 16, 1, 12, 12, 2)
EVEN(64, 80, 8, 8, 1, 8, 20, 3)
EVEN(64, 80, 8, 4, 1, 8, 20, 3)
EVEN(64, 80, 8, 2, 1, 8, 20, 3)
EVEN(64, 64, 8, 4, 1, 8, 16, 3)
EVEN(20, 128, 8, 8, 1, 5, 16, 2)
EVEN(20, 128, 8, 16, 1, 5, 16, 2)
EVEN(24, 128, 8, 8, 1, 6, 16, 2)
EVEN(20, 128, 8, 4, 1, 5, 16, 2)
EVEN(24, 128, 8, 4, 1, 6, 16, 2)
EVEN(32, 128, 8, 4, 1, 8, 16, 2)
EVEN(36, 128, 8, 8, 1, 9, 16, 2)
EVEN(40, 128, 8, 8, 1, 10, 16, 2)
EVEN(40, 64, 8, 8, 1, 5, 16, 3)
EVEN(40, 64, 8, 16, 1, 5, 16, 3)
EVEN(64, 40, 8, 16, 1, 4, 20, 3)
EVEN(64, 32, 8, 16, 1, 8, 8, 4)
EVEN(32, 80, 8, 16, 1, 4, 20, 3)
EVEN(80, 32, 8, 16, 1, 10, 8, 3)

// The same, of blocks of the whole grid (matmul_fma_shares.cuh).
#define SHARES(rows, OfB, bm, bn, warps, blocks_a_sm, ...)                                                                                 \
    using Tile_##rows##_##bm##x##bn##_w##warps##_shares = __VA_ARGS__;                                                                     \
    IF_WANTED(matmul_rows_float32_##rows##_##bm##x##bn##_w##warps##_shares,                                                                \
    extern "C" __global__ void __launch_bounds__(32 * warps, blocks_a_sm) matmul_rows_float32_##rows##_##bm##x##bn##_w##warps##_shares(    \
            OF_A_##rows a, OfB b, float *c, long long m, long long k, long long n, unsigned *flags) {                                      \
        fma_shares_matmul<Tile_##rows##_##bm##x##bn##_w##warps##_shares>(a, b, c, m, k, n, flags);                                         \
    })
#define OF_A_even const __grid_constant__ TensorMap
#define OF_A_words const __grid_constant__ RowClasses<4>
#define EVEN_SHARES(bm, bn, warps, blocks_a_sm, ...)                                                                                       \
    SHARES(even, const __grid_constant__ TensorMap, bm, bn, warps, blocks_a_sm, RowsTile<bm, bn, warps, 1, __VA_ARGS__>)
#define WORDS_SHARES(bm, bn, warps, blocks_a_sm, ...)                                                                                      \
    SHARES(words, const float *, bm, bn, warps, blocks_a_sm, RowsTile<bm, bn, warps, 4, __VA_ARGS__, true>)

EVEN_SHARES(64, 64, 4, 2, 8, 16, 3)
WORDS_SHARES(64, 80, 4, 2, 8, 20, 2)
WORDS_SHARES(64, 80, 8, 1, 8, 20, 2)
WORDS_SHARES(48, 96, 4, 2, 12, 12, 2)
