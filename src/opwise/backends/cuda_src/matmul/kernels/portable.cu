// The matmul kernels for any GPU by name: C (m, n) = A (m, k) B (k, n), row-major, any m, k, n >= 1, accumulated in float32.
//
// matmul_<dtype>_[simt_]<BM>x<BN>_v<GRANULE>: a block computes a BM x BN tile, and GRANULE bytes divide all three base addresses and
// the row pitches of A, B and C. kernels/__init__.py has the same tiles.
// matmul_<dtype>_gemv_columns_<N>_t<THREADS>, gemv_rows_<M>x<BN>_b<BLOCKS>: of N columns of B, M rows of A, GRANULE bytes an access; gemv.py.
//
// All but the textbook kernel take a one-dimensional grid.
#include "matmul/kernels/gemv_columns.cuh"
#include "matmul/kernels/gemv_rows.cuh"
#include "matmul/kernels/mma_sync.cuh"
#include "matmul/kernels/simt.cuh"

// The classroom kernel: 16x16 threads a block, one element of C a thread, every factor read from global memory 16 times over by a block
// and served by the caches. It is here to be measured against, not to be used.
#ifdef MATMUL_FLOAT32
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

// MmaTile: BM, BN, bytes of K a step, warps in M, N and K, stages, granule. SimtTile: threads in X and Y, rows and columns a thread,
// K a step, slices of K, stages, granule.
#define MMA_KERNELS(dtype, Storage)                                                                                                        \
    KERNEL(matmul_##dtype##_128x256_v16, Storage, mma_sync_matmul, 1, MmaTile<Storage, 128, 256, 128, 2, 4, 1, 3, 16>)                     \
    KERNEL(matmul_##dtype##_128x128_v16, Storage, mma_sync_matmul, 2, MmaTile<Storage, 128, 128, 64, 2, 2, 1, 4, 16>)                      \
    KERNEL(matmul_##dtype##_64x64_v16, Storage, mma_sync_matmul, 3, MmaTile<Storage, 64, 64, 128, 2, 2, 1, 4, 16>)                         \
    KERNEL(matmul_##dtype##_16x32_v16, Storage, mma_sync_matmul, 2, MmaTile<Storage, 16, 32, 256, 1, 1, 4, 6, 16>)                         \
    KERNEL(matmul_##dtype##_128x128_v4, Storage, mma_sync_matmul, 1, MmaTile<Storage, 128, 128, 64, 2, 4, 1, 4, 4>)                        \
    KERNEL(matmul_##dtype##_64x64_v4, Storage, mma_sync_matmul, 2, MmaTile<Storage, 64, 64, 128, 2, 2, 1, 4, 4>)

// Columns of B, threads that share K, bytes of an access.
#define COLUMNS(dtype, Storage, n, sharing, granule)                                                                                       \
    KERNEL(matmul_##dtype##_gemv_columns_##n##_t##sharing##_v##granule, Storage, gemv_columns_matmul, 2, GemvColumnsTile<Storage, n, sharing, granule>)
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
    KERNEL(matmul_##dtype##_gemv_rows_##m##x##columns##_b##blocks##_v##granule, Storage, gemv_rows_matmul, blocks,                         \
           GemvRowsTile<Storage, m, columns, blocks, granule>)
#define ROWS_1_TO_4(dtype, Storage, columns, blocks, granule)                                                                              \
    ROWS(dtype, Storage, 1, columns, blocks, granule) ROWS(dtype, Storage, 2, columns, blocks, granule)                                    \
    ROWS(dtype, Storage, 3, columns, blocks, granule) ROWS(dtype, Storage, 4, columns, blocks, granule)
#define GEMV_KERNELS(dtype, Storage, size)                                                                                                 \
    COLUMNS_1_TO_4(dtype, Storage, 32, size) COLUMNS_1_TO_4(dtype, Storage, 256, size)                                                     \
    COLUMNS_1_TO_4(dtype, Storage, 8, 16) COLUMNS_1_TO_7(dtype, Storage, 32, 16) COLUMNS_1_TO_7(dtype, Storage, 256, 16)                   \
    ROWS_1_TO_4(dtype, Storage, 8, 1, size) ROWS_1_TO_4(dtype, Storage, 32, 1, size) ROWS_1_TO_4(dtype, Storage, 64, 1, size)              \
    ROWS_1_TO_4(dtype, Storage, 128, 1, size) ROWS_1_TO_4(dtype, Storage, 128, 2, size) ROWS_1_TO_4(dtype, Storage, 128, 4, size)
#define ROWS_OF_PAIRS(dtype, Storage)                                                                                                      \
    ROWS_1_TO_4(dtype, Storage, 16, 1, 4) ROWS_1_TO_4(dtype, Storage, 32, 1, 4) ROWS_1_TO_4(dtype, Storage, 64, 1, 4)                      \
    ROWS_1_TO_4(dtype, Storage, 128, 1, 4) ROWS_1_TO_4(dtype, Storage, 128, 2, 4) ROWS_1_TO_4(dtype, Storage, 128, 4, 4)

#define HALF_KERNELS(dtype, Storage)                                                                                                       \
    MMA_KERNELS(dtype, Storage)                                                                                                            \
    KERNEL(matmul_##dtype##_128x128_v2, Storage, mma_sync_matmul, 1, MmaTile<Storage, 128, 128, 64, 2, 4, 1, 2, 2>)                        \
    KERNEL(matmul_##dtype##_64x64_v2, Storage, mma_sync_matmul, 3, MmaTile<Storage, 64, 64, 64, 2, 2, 1, 2, 2>)                            \
    KERNEL(matmul_##dtype##_simt_64x64_v2, Storage, simt_matmul, 2, SimtTile<Storage, 16, 8, 8, 4, 16, 1, 3, 2>)                           \
    GEMV_KERNELS(dtype, Storage, 2) ROWS_OF_PAIRS(dtype, Storage)                                                                          \
    ROWS_1_TO_4(dtype, Storage, 128, 8, 2) ROWS_1_TO_4(dtype, Storage, 128, 8, 4)

#ifdef MATMUL_FLOAT32
KERNEL(matmul_float32_simt_128x128_v16, float, simt_matmul, 2, SimtTile<float, 8, 16, 8, 16, 16, 1, 3, 16>)
KERNEL(matmul_float32_simt_64x64_v16, float, simt_matmul, 3, SimtTile<float, 16, 8, 8, 4, 16, 1, 4, 16>)
KERNEL(matmul_float32_simt_16x32_v16, float, simt_matmul, 2, SimtTile<float, 8, 4, 4, 4, 64, 4, 6, 16>)
KERNEL(matmul_float32_simt_128x128_v4, float, simt_matmul, 1, SimtTile<float, 16, 16, 8, 8, 16, 1, 3, 4>)
KERNEL(matmul_float32_simt_64x64_v4, float, simt_matmul, 3, SimtTile<float, 16, 8, 8, 4, 16, 1, 4, 4>)
GEMV_KERNELS(float32, float, 4)
ROWS_1_TO_4(float32, float, 128, 8, 4) ROWS_1_TO_4(float32, float, 128, 8, 8)
COLUMNS_5_TO_7(float32, float, 8, 16)  // of more columns 16 bits go by mma.sync
ROWS(float32, float, 8, 32, 1, 4) ROWS(float32, float, 8, 64, 1, 4)
ROWS(float32, float, 8, 128, 1, 4) ROWS(float32, float, 8, 128, 2, 4) ROWS(float32, float, 8, 128, 4, 4)
ROWS(float32, float, 8, 32, 1, 8) ROWS(float32, float, 8, 64, 2, 8)
ROWS(float32, float, 8, 128, 2, 8) ROWS(float32, float, 8, 128, 4, 8)
ROWS(float32, float, 1, 8, 1, 16) ROWS(float32, float, 1, 16, 1, 16)
ROWS_1_TO_4(float32, float, 16, 1, 4) ROWS_1_TO_4(float32, float, 32, 1, 16) ROWS_1_TO_4(float32, float, 64, 1, 16)
ROWS_1_TO_4(float32, float, 64, 2, 16) ROWS_1_TO_4(float32, float, 64, 4, 16) ROWS_1_TO_4(float32, float, 128, 4, 16)
#endif
#ifdef MATMUL_TFLOAT32
MMA_KERNELS(tfloat32, float)
#endif
#ifdef MATMUL_FLOAT16
HALF_KERNELS(float16, float16)
#endif
#ifdef MATMUL_BFLOAT16
HALF_KERNELS(bfloat16, bfloat16)
#endif
