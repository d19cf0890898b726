// The matmul kernels for any GPU by name: C (m, n) = A (m, k) B (k, n), row-major, any m, k, n >= 1, accumulated in float32.
//
// matmul_<dtype>_[simt_]<BM>x<BN>_v<GRANULE>: a block computes a BM x BN tile; the base addresses and row pitches of A, B and C are
// multiples of GRANULE bytes; portable.py. matmul_transposed_<dtype>_..._<layout>: the same for transposed factors.
// matmul_<dtype>_gemv_columns_<N>_t<THREADS>_v<GRANULE>: N columns of B, loads of GRANULE bytes; gemv.py.
//
// All but the textbook kernel take a one-dimensional grid.
#include "matmul/kernels/gemv_columns.cuh"
#include "matmul/kernels/mma_sync.cuh"
#include "matmul/kernels/simt.cuh"

// The textbook kernel, for comparison: 16x16 threads per block, one element of C per thread. A block reads every factor from global memory
// or the caches 16 times.
#ifdef MATMUL_TEXTBOOK
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
