// The matmul kernels by name: C (m, n) = A (m, k) B (k, n), row-major, any m, k, n >= 1, accumulated in float32.
//
// matmul_<dtype>_[simt_]<BM>x<BN>_v<GRANULE>: a block computes a BM x BN tile, and GRANULE bytes divide all three base addresses and
// the row pitches of A, B and C. once_<BM>x<BN>x<BK>: by steps of BK of a short K; matmul_once.py. columns_<N>, columns_mma_<N>,
// rows_<M>x<BN>, few_16x<BN>_w<WARPS>: of a B or an A that is thin, GRANULE bytes an access; matmul_thin.py, matmul_columns.py, matmul_few.py.
// matmul_kernels.py has the tiles of the others, matmul_plan.py chooses. All but the textbook kernel take a one-dimensional grid.
#include "matmul_columns.cuh"
#include "matmul_columns_mma.cuh"
#include "matmul_few.cuh"
#include "matmul_groups.cuh"
#include "matmul_once.cuh"
#include "matmul_row.cuh"
#include "matmul_simt.cuh"
#include "matmul_tensor.cuh"

// The classroom kernel: 16x16 threads a block, one element of C a thread, every factor read from global memory 16 times over by a block
// and served by the caches. It is here to be measured against, not to be used.
#if MATMUL_GROUP == 0 || MATMUL_GROUP == MATMUL_FLOAT32
extern "C" __global__ void __launch_bounds__(256)
    matmul_textbook_float32(const float *a, const float *b, float *c, long long m, long long k, long long n) {
    const long long tiles_n = (n + 15) / 16;  // the grid is one-dimensional: gridDim.y ends at 65535
    const long long row = blockIdx.x / tiles_n * 16 + threadIdx.y, column = blockIdx.x % tiles_n * 16 + threadIdx.x;
    if (row >= m || column >= n) return;
    float total = 0.0f;
    for (long long i = 0; i < k; i++) total = fused(a[row * k + i], b[i * n + column], total);
    c[row * n + column] = total;
}
#endif

#define KERNEL(name, Storage, compute, blocks_a_sm, ...)                                                                                   \
    using Tile_##name = __VA_ARGS__;                                                                                                       \
    IF_WANTED(name,                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(Tile_##name::THREADS, blocks_a_sm)                                                        \
        name(const Storage *a, const Storage *b, Storage *c, long long m, long long k, long long n) {                                      \
        compute<Tile_##name>(a, b, c, m, k, n);                                                                                            \
    })

// TensorTile: BM, BN, bytes of K a step, warps in M, N and K, stages, granule. SimtTile: threads in X and Y, rows and columns a thread,
// K a step, slices of K, stages, granule.
#define TENSOR_KERNELS(dtype, Storage)                                                                                                     \
    KERNEL(matmul_##dtype##_128x256_v16, Storage, tensor_matmul, 1, TensorTile<Storage, 128, 256, 128, 2, 4, 1, 3, 16>)                    \
    KERNEL(matmul_##dtype##_128x128_v16, Storage, tensor_matmul, 2, TensorTile<Storage, 128, 128, 64, 2, 2, 1, 4, 16>)                     \
    KERNEL(matmul_##dtype##_64x64_v16, Storage, tensor_matmul, 3, TensorTile<Storage, 64, 64, 128, 2, 2, 1, 4, 16>)                        \
    KERNEL(matmul_##dtype##_16x32_v16, Storage, tensor_matmul, 2, TensorTile<Storage, 16, 32, 256, 1, 1, 4, 6, 16>)                        \
    KERNEL(matmul_##dtype##_128x128_v4, Storage, tensor_matmul, 1, TensorTile<Storage, 128, 128, 64, 2, 4, 1, 4, 4>)                       \
    KERNEL(matmul_##dtype##_64x64_v4, Storage, tensor_matmul, 2, TensorTile<Storage, 64, 64, 128, 2, 2, 1, 4, 4>)

// Columns of B, threads that share K, bytes of an access.
#define COLUMNS(dtype, Storage, n, sharing, granule)                                                                                       \
    KERNEL(matmul_##dtype##_columns_##n##_t##sharing##_v##granule, Storage, columns_matmul, 2, ColumnsTile<Storage, n, sharing, granule>)
#define COLUMNS_1_TO_4(dtype, Storage, sharing, granule)                                                                                   \
    COLUMNS(dtype, Storage, 1, sharing, granule) COLUMNS(dtype, Storage, 2, sharing, granule)                                              \
    COLUMNS(dtype, Storage, 3, sharing, granule) COLUMNS(dtype, Storage, 4, sharing, granule)
#define COLUMNS_5_TO_7(dtype, Storage, sharing, granule)                                                                                   \
    COLUMNS(dtype, Storage, 5, sharing, granule) COLUMNS(dtype, Storage, 6, sharing, granule)                                              \
    COLUMNS(dtype, Storage, 7, sharing, granule)
#define COLUMNS_1_TO_7(dtype, Storage, sharing, granule)                                                                                   \
    COLUMNS_1_TO_4(dtype, Storage, sharing, granule) COLUMNS_5_TO_7(dtype, Storage, sharing, granule)
// Rows of A, columns of a block, blocks a multiprocessor, of 1024 threads together, bytes of an access.
#define ROWS(dtype, Storage, m, columns, blocks, granule)                                                                                  \
    KERNEL(matmul_##dtype##_rows_##m##x##columns##_b##blocks##_v##granule, Storage, row_matmul, blocks,                                    \
           RowTile<Storage, m, columns, blocks, granule>)
#define ROWS_1_TO_4(dtype, Storage, columns, blocks, granule)                                                                              \
    ROWS(dtype, Storage, 1, columns, blocks, granule) ROWS(dtype, Storage, 2, columns, blocks, granule)                                    \
    ROWS(dtype, Storage, 3, columns, blocks, granule) ROWS(dtype, Storage, 4, columns, blocks, granule)
#define THIN_KERNELS(dtype, Storage, size)                                                                                                 \
    COLUMNS_1_TO_4(dtype, Storage, 32, size) COLUMNS_1_TO_4(dtype, Storage, 256, size)                                                     \
    COLUMNS_1_TO_4(dtype, Storage, 8, 16) COLUMNS_1_TO_7(dtype, Storage, 32, 16) COLUMNS_1_TO_7(dtype, Storage, 256, 16)                   \
    ROWS_1_TO_4(dtype, Storage, 8, 1, size) ROWS_1_TO_4(dtype, Storage, 32, 1, size) ROWS_1_TO_4(dtype, Storage, 64, 1, size)              \
    ROWS_1_TO_4(dtype, Storage, 128, 1, size) ROWS_1_TO_4(dtype, Storage, 128, 2, size) ROWS_1_TO_4(dtype, Storage, 128, 4, size)
#define ROWS_OF_PAIRS(dtype, Storage)                                                                                                      \
    ROWS_1_TO_4(dtype, Storage, 16, 1, 4) ROWS_1_TO_4(dtype, Storage, 32, 1, 4) ROWS_1_TO_4(dtype, Storage, 64, 1, 4)                      \
    ROWS_1_TO_4(dtype, Storage, 128, 1, 4) ROWS_1_TO_4(dtype, Storage, 128, 2, 4) ROWS_1_TO_4(dtype, Storage, 128, 4, 4)
// Columns of B at most, rows of a warp in sixteens, threads that share K, bytes of an access of B. _WORDS: of rows of A that begin on 4 bytes.
#define COLUMNS_MMA_KERNEL(dtype, Storage, most, high, sharing, granule)                                                                   \
    KERNEL(matmul_##dtype##_columns_mma_##most##_h##high##_t##sharing##_v##granule, Storage, columns_mma_matmul, 2,                        \
           ColumnsMmaTile<Storage, most, high, sharing / 32, granule>)
#define COLUMNS_MMA_OF_KERNEL(dtype, Storage, most, sharing, granule, granule_a)                                                           \
    KERNEL(matmul_##dtype##_columns_mma_##most##_h2_t##sharing##_v##granule##a##granule_a, Storage, columns_mma_matmul, 2,                 \
           ColumnsMmaTile<Storage, most, 2, sharing / 32, granule, granule_a>)
#define COLUMNS_MMA_OF(dtype, Storage, most, granule, granule_a)                                                                           \
    COLUMNS_MMA_OF_KERNEL(dtype, Storage, most, 32, granule, granule_a) COLUMNS_MMA_OF_KERNEL(dtype, Storage, most, 64, granule, granule_a) \
    COLUMNS_MMA_OF_KERNEL(dtype, Storage, most, 128, granule, granule_a) COLUMNS_MMA_OF_KERNEL(dtype, Storage, most, 256, granule, granule_a)
#define COLUMNS_MMA(dtype, Storage, most, high, granule)                                                                                   \
    COLUMNS_MMA_KERNEL(dtype, Storage, most, high, 32, granule) COLUMNS_MMA_KERNEL(dtype, Storage, most, high, 64, granule)                \
    COLUMNS_MMA_KERNEL(dtype, Storage, most, high, 128, granule) COLUMNS_MMA_KERNEL(dtype, Storage, most, high, 256, granule)

// Columns of B of a block, bytes of an access of B, blocks a multiprocessor, warps, steps of a warp under way at once.
#define FEW(dtype, Storage, bn, granule, blocks_a_sm, warps, turns)                                                                        \
    KERNEL(matmul_##dtype##_few_16x##bn##_w##warps##_v##granule, Storage, few_matmul, blocks_a_sm,                                         \
           FewTile<Storage, bn, warps, turns, granule>)

// Of a small product: rows and columns of a tile, K of a step, warps below one another, bytes of an access.
#define ONCE(dtype, Storage, bm, bn, bk, warps_m, granule)                                                                                 \
    KERNEL(matmul_##dtype##_once_##bm##x##bn##x##bk##_v##granule, Storage, once_matmul, 2,                                                 \
           OnceTile<Storage, bm, bn, bk, warps_m, granule>)
#define ONCE_FMA(bm, bn, bk, granule)                                                                                                      \
    KERNEL(matmul_float32_once_##bm##x##bn##x##bk##_v##granule, float, once_matmul, 2, OnceFmaTile<bm, bn, bk, granule>)
#define ONCE_KERNELS(dtype, Storage)                                                                                                       \
    ONCE(dtype, Storage, 16, 32, 64, 1, 2) ONCE(dtype, Storage, 32, 32, 64, 2, 2) ONCE(dtype, Storage, 16, 32, 128, 1, 2)                  \
    ONCE(dtype, Storage, 16, 32, 64, 1, 4) ONCE(dtype, Storage, 16, 64, 64, 1, 4) ONCE(dtype, Storage, 32, 32, 64, 2, 4)                   \
    ONCE(dtype, Storage, 64, 64, 64, 2, 4) ONCE(dtype, Storage, 16, 32, 128, 1, 4) ONCE(dtype, Storage, 32, 32, 128, 2, 4)                 \
    ONCE(dtype, Storage, 16, 32, 64, 1, 8) ONCE(dtype, Storage, 16, 64, 64, 1, 8) ONCE(dtype, Storage, 32, 64, 64, 2, 8)                   \
    ONCE(dtype, Storage, 64, 64, 64, 2, 8) ONCE(dtype, Storage, 16, 32, 128, 1, 8) ONCE(dtype, Storage, 16, 64, 128, 1, 8)                 \
    ONCE(dtype, Storage, 32, 32, 128, 2, 8) ONCE(dtype, Storage, 16, 32, 256, 1, 8) ONCE(dtype, Storage, 16, 64, 256, 1, 8)                \
    ONCE(dtype, Storage, 32, 32, 256, 2, 8) ONCE(dtype, Storage, 32, 64, 256, 2, 8)

#define HALF_KERNELS(dtype, Storage)                                                                                                       \
    TENSOR_KERNELS(dtype, Storage)                                                                                                         \
    KERNEL(matmul_##dtype##_128x128_v2, Storage, tensor_matmul, 1, TensorTile<Storage, 128, 128, 64, 2, 4, 1, 2, 2>)                       \
    KERNEL(matmul_##dtype##_64x64_v2, Storage, tensor_matmul, 3, TensorTile<Storage, 64, 64, 64, 2, 2, 1, 2, 2>)                           \
    COLUMNS_MMA(dtype, Storage, 8, 2, 2) COLUMNS_MMA(dtype, Storage, 8, 2, 16)                                                             \
    COLUMNS_MMA(dtype, Storage, 16, 2, 2) COLUMNS_MMA(dtype, Storage, 16, 2, 16) COLUMNS_MMA(dtype, Storage, 24, 2, 16)                    \
    COLUMNS_MMA_KERNEL(dtype, Storage, 8, 1, 256, 16) COLUMNS_MMA_KERNEL(dtype, Storage, 16, 1, 256, 16)                                   \
    COLUMNS_MMA_KERNEL(dtype, Storage, 24, 1, 256, 16) COLUMNS_MMA(dtype, Storage, 24, 2, 2)                                               \
    COLUMNS_MMA_OF(dtype, Storage, 8, 2, 4) COLUMNS_MMA_OF(dtype, Storage, 16, 2, 4)                                                       \
    COLUMNS_MMA_OF(dtype, Storage, 8, 2, 1) COLUMNS_MMA_OF(dtype, Storage, 16, 2, 1)                                                       \
    FEW(dtype, Storage, 32, 8, 2, 8, 3) FEW(dtype, Storage, 32, 8, 4, 4, 2)                                                                \
    FEW(dtype, Storage, 32, 4, 2, 8, 3) FEW(dtype, Storage, 32, 4, 4, 4, 2)                                                                \
    KERNEL(matmul_##dtype##_simt_64x64_v2, Storage, simt_matmul, 2, SimtTile<Storage, 16, 8, 8, 4, 16, 1, 3, 2>)

#if MATMUL_GROUP == 0 || MATMUL_GROUP == MATMUL_FLOAT32
KERNEL(matmul_float32_simt_128x128_v16, float, simt_matmul, 2, SimtTile<float, 8, 16, 8, 16, 16, 1, 3, 16>)
KERNEL(matmul_float32_simt_64x64_v16, float, simt_matmul, 3, SimtTile<float, 16, 8, 8, 4, 16, 1, 4, 16>)
KERNEL(matmul_float32_simt_16x32_v16, float, simt_matmul, 2, SimtTile<float, 8, 4, 4, 4, 64, 4, 6, 16>)
KERNEL(matmul_float32_simt_128x128_v4, float, simt_matmul, 1, SimtTile<float, 16, 16, 8, 8, 16, 1, 3, 4>)
KERNEL(matmul_float32_simt_64x64_v4, float, simt_matmul, 3, SimtTile<float, 16, 8, 8, 4, 16, 1, 4, 4>)
THIN_KERNELS(float32, float, 4)
ROWS_1_TO_4(float32, float, 128, 8, 4) ROWS_1_TO_4(float32, float, 128, 8, 8)
COLUMNS_5_TO_7(float32, float, 8, 16)  // of more columns 16 bits go by mma.sync
ROWS(float32, float, 8, 32, 1, 4) ROWS(float32, float, 8, 64, 1, 4)
ROWS(float32, float, 8, 128, 1, 4) ROWS(float32, float, 8, 128, 2, 4) ROWS(float32, float, 8, 128, 4, 4)
ROWS(float32, float, 8, 32, 1, 8) ROWS(float32, float, 8, 64, 2, 8)
ROWS(float32, float, 8, 128, 2, 8) ROWS(float32, float, 8, 128, 4, 8)
ONCE_FMA(16, 32, 32, 4) ONCE_FMA(16, 64, 32, 4) ONCE_FMA(64, 64, 32, 4)
ONCE_FMA(16, 32, 64, 4) ONCE_FMA(16, 64, 64, 4) ONCE_FMA(32, 32, 64, 4)
ONCE_FMA(16, 64, 32, 16) ONCE_FMA(16, 32, 64, 16) ONCE_FMA(32, 32, 64, 16) ONCE_FMA(32, 64, 64, 16)
ROWS(float32, float, 1, 8, 1, 16) ROWS(float32, float, 1, 16, 1, 16)
ROWS_1_TO_4(float32, float, 16, 1, 4) ROWS_1_TO_4(float32, float, 32, 1, 16) ROWS_1_TO_4(float32, float, 64, 1, 16)
ROWS_1_TO_4(float32, float, 64, 2, 16) ROWS_1_TO_4(float32, float, 64, 4, 16) ROWS_1_TO_4(float32, float, 128, 4, 16)
#endif
#if MATMUL_GROUP == 0 || MATMUL_GROUP == MATMUL_TFLOAT32
TENSOR_KERNELS(tfloat32, float)
FEW(tfloat32, float, 32, 16, 2, 8, 3) FEW(tfloat32, float, 32, 16, 4, 4, 2)
FEW(tfloat32, float, 64, 16, 4, 4, 1)
ONCE(tfloat32, float, 16, 32, 32, 1, 4) ONCE(tfloat32, float, 32, 32, 32, 2, 4) ONCE(tfloat32, float, 16, 32, 64, 1, 4)
ONCE(tfloat32, float, 16, 32, 64, 1, 16) ONCE(tfloat32, float, 16, 64, 64, 1, 16) ONCE(tfloat32, float, 32, 32, 64, 2, 16)
ONCE(tfloat32, float, 16, 32, 128, 1, 16) ONCE(tfloat32, float, 32, 32, 128, 2, 16)
COLUMNS_MMA(tfloat32, float, 8, 2, 4) COLUMNS_MMA(tfloat32, float, 16, 2, 4)
COLUMNS_MMA_KERNEL(tfloat32, float, 8, 1, 256, 4) COLUMNS_MMA_KERNEL(tfloat32, float, 16, 1, 256, 4)
COLUMNS_MMA_OF(tfloat32, float, 8, 4, 4) COLUMNS_MMA_OF(tfloat32, float, 16, 4, 4)
#endif
#if MATMUL_GROUP == 0 || MATMUL_GROUP == MATMUL_FLOAT16
HALF_KERNELS(float16, float16)
ONCE_KERNELS(float16, float16)
THIN_KERNELS(float16, float16, 2)
ROWS_OF_PAIRS(float16, float16)
ROWS_1_TO_4(float16, float16, 128, 8, 2) ROWS_1_TO_4(float16, float16, 128, 8, 4)
#endif
#if MATMUL_GROUP == 0 || MATMUL_GROUP == MATMUL_BFLOAT16
HALF_KERNELS(bfloat16, bfloat16)
ONCE_KERNELS(bfloat16, bfloat16)
THIN_KERNELS(bfloat16, bfloat16, 2)
ROWS_OF_PAIRS(bfloat16, bfloat16)
ROWS_1_TO_4(bfloat16, bfloat16, 128, 8, 2) ROWS_1_TO_4(bfloat16, bfloat16, 128, 8, 4)
#endif
