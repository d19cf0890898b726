// The rungs between the classroom kernel and portable.cu's, each one idea above the one before: docs/kernels.md climbs them.
// C (m, n) = A (m, k) B (k, n), row-major, any m, k, n >= 1, accumulated in float32.
//
// matmul_ladder_shared_<dtype>     a 32 x 32 tile of each factor in shared memory; an element of C a thread, 32 x 32 threads
// matmul_ladder_registers_<dtype>  a block computes 128 x 128 of C, each of its 256 threads 8 x 8 of them in registers
// matmul_ladder_vectors_<dtype>    the same in 16-byte pieces: for 16-byte aligned A, B, C and rows
//
// They are here to be read and measured against. The grid is one-dimensional, a block a tile, since gridDim.y ends at 65535.
#include "common/elements.cuh"
#include "common/ptx.cuh"

constexpr int SHARED_TILE = 32;

// What a block reads it uses 32 times, from shared memory. Per multiply-add a thread still loads two factors from there.
template <class Storage>
__device__ __forceinline__ void shared_matmul(const Storage *a, const Storage *b, Storage *c, long long m, long long k, long long n) {
    __shared__ float of_a[SHARED_TILE][SHARED_TILE], of_b[SHARED_TILE][SHARED_TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    const long long tiles_n = (n + SHARED_TILE - 1) / SHARED_TILE;
    const long long row = blockIdx.x / tiles_n * SHARED_TILE + y, column = blockIdx.x % tiles_n * SHARED_TILE + x;
    float total = 0.0f;
    for (long long start = 0; start < k; start += SHARED_TILE) {
        of_a[y][x] = row < m && start + x < k ? to_float(a[row * k + start + x]) : 0.0f;
        of_b[y][x] = start + y < k && column < n ? to_float(b[(start + y) * n + column]) : 0.0f;
        __syncthreads();  // both tiles are there
        for (int i = 0; i < SHARED_TILE; i++) total = fused(of_a[y][i], of_b[i][x], total);
        __syncthreads();  // nobody reads them any more
    }
    if (row < m && column < n) from_float(total, c[row * n + column]);
}

constexpr int SIDE = 128, DEPTH = 16, THREADS = 256, EACH = 8;  // of C's tile, of a step along K, of a block, of a thread's part of C
constexpr int ACROSS = SIDE / EACH;                             // threads along a side of the tile

// For 64 multiply-adds a thread loads 16 factors from shared memory, not 128. Its rows and columns lie ACROSS apart, so that the threads
// of a warp read neighbours of B, which lie in different banks, and the same elements of A, which one read gives to all.
template <class Storage>
__device__ __forceinline__ void registers_matmul(const Storage *a, const Storage *b, Storage *c, long long m, long long k, long long n) {
    __shared__ float of_a[SIDE][DEPTH], of_b[DEPTH][SIDE];
    const int thread = threadIdx.x, x = thread % ACROSS, y = thread / ACROSS;
    const long long tiles_n = (n + SIDE - 1) / SIDE, row = blockIdx.x / tiles_n * SIDE, column = blockIdx.x % tiles_n * SIDE;
    float sums[EACH][EACH] = {};
    for (long long start = 0; start < k; start += DEPTH) {
        for (int at = thread; at < SIDE * DEPTH; at += THREADS) {
            const int r = at / DEPTH, i = at % DEPTH;
            of_a[r][i] = row + r < m && start + i < k ? to_float(a[(row + r) * k + start + i]) : 0.0f;
        }
        for (int at = thread; at < SIDE * DEPTH; at += THREADS) {
            const int i = at / SIDE, s = at % SIDE;
            of_b[i][s] = start + i < k && column + s < n ? to_float(b[(start + i) * n + column + s]) : 0.0f;
        }
        __syncthreads();
#pragma unroll 1  // unrolled, the compiler would load four i of A at once: that is the next rung's idea
        for (int i = 0; i < DEPTH; i++) {
            float rows[EACH], columns[EACH];
#pragma unroll
            for (int r = 0; r < EACH; r++) rows[r] = of_a[y + r * ACROSS][i];
#pragma unroll
            for (int s = 0; s < EACH; s++) columns[s] = of_b[i][x + s * ACROSS];
#pragma unroll
            for (int r = 0; r < EACH; r++) {
#pragma unroll
                for (int s = 0; s < EACH; s++) sums[r][s] = fused(rows[r], columns[s], sums[r][s]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < EACH; r++) {
#pragma unroll
        for (int s = 0; s < EACH; s++) {
            const long long i = row + y + r * ACROSS, j = column + x + s * ACROSS;
            if (i < m && j < n) from_float(sums[r][s], c[i * n + j]);
        }
    }
}

__device__ __forceinline__ void load_four(const float *from, float *to) {
    Piece<float, 16>::unpack(*reinterpret_cast<const float4 *>(from), to);
}
__device__ __forceinline__ void store_four(float *to, const float *x) { *reinterpret_cast<float4 *>(to) = Piece<float, 16>::pack(x); }
template <class Half> __device__ __forceinline__ void store_four(Half *to, const float *x) {
    *reinterpret_cast<uint2 *>(to) = make_uint2(pack_pair(x[0], x[1], Half{}), pack_pair(x[2], x[3], Half{}));
}

// ROWS x COLUMNS of a matrix in 16-byte pieces, which lie wholly inside it or wholly outside: place(row, column, elements of a piece).
template <int ROWS, int COLUMNS, class Storage, class Place>
__device__ __forceinline__ void fetch(const Storage *from, long long pitch, long long rows_left, long long columns_left, Place place) {
    using P = Piece<Storage, 16>;
    for (int at = threadIdx.x; at < ROWS * COLUMNS / P::COUNT; at += THREADS) {
        const int r = at * P::COUNT / COLUMNS, s = at * P::COUNT % COLUMNS;
        const bool inside = r < rows_left && s < columns_left;
        float values[P::COUNT];
        P::unpack(inside ? *reinterpret_cast<const typename P::Raw *>(from + r * pitch + s) : P::zero(), values);
        place(r, s, values);
    }
}

// A thread's rows and columns lie in fours, and so do they in shared memory, where A is transposed: 4 loads, not 16, for 64 multiply-adds.
template <class Storage>
__device__ __forceinline__ void vectors_matmul(const Storage *a, const Storage *b, Storage *c, long long m, long long k, long long n) {
    constexpr int COUNT = Piece<Storage, 16>::COUNT, APART = SIDE / 2;  // from four rows or columns of a thread to its next four
    __shared__ __align__(16) float of_a[DEPTH][SIDE + 4], of_b[DEPTH][SIDE];  // + 4: a piece's elements go to different banks
    const int thread = threadIdx.x, x = 4 * (thread % ACROSS), y = 4 * (thread / ACROSS);
    const long long tiles_n = (n + SIDE - 1) / SIDE, row = blockIdx.x / tiles_n * SIDE, column = blockIdx.x % tiles_n * SIDE;
    float sums[EACH][EACH] = {};
    for (long long start = 0; start < k; start += DEPTH) {
        fetch<SIDE, DEPTH>(a + row * k + start, k, m - row, k - start, [&](int r, int i, const float *values) {
            for (int j = 0; j < COUNT; j++) of_a[i + j][r] = values[j];
        });
        fetch<DEPTH, SIDE>(b + start * n + column, n, k - start, n - column, [&](int i, int s, const float *values) {
            for (int j = 0; j < COUNT; j += 4) store_four(&of_b[i][s + j], values + j);
        });
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < DEPTH; i++) {
            float rows[EACH], columns[EACH];
            load_four(&of_a[i][y], rows), load_four(&of_a[i][y + APART], rows + 4);
            load_four(&of_b[i][x], columns), load_four(&of_b[i][x + APART], columns + 4);
#pragma unroll
            for (int r = 0; r < EACH; r++) {
#pragma unroll
                for (int s = 0; s < EACH; s++) sums[r][s] = fused(rows[r], columns[s], sums[r][s]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < EACH; r++) {
#pragma unroll
        for (int s = 0; s < EACH; s += 4) {
            const long long i = row + y + r / 4 * APART + r % 4, j = column + x + s / 4 * APART;
            if (i < m && j < n) store_four(c + i * n + j, sums[r] + s);
        }
    }
}

#define KERNEL(rung, threads, dtype, Storage)                                                                                              \
    IF_WANTED(matmul_ladder_##rung##_##dtype,                                                                                              \
    extern "C" __global__ void __launch_bounds__(threads, 2)                                                                               \
        matmul_ladder_##rung##_##dtype(const Storage *a, const Storage *b, Storage *c, long long m, long long k, long long n) {            \
        rung##_matmul<Storage>(a, b, c, m, k, n);                                                                                          \
    })
#define KERNELS(dtype, Storage, size)                                                                                                      \
    KERNEL(shared, SHARED_TILE *SHARED_TILE, dtype, Storage)                                                                               \
    KERNEL(registers, THREADS, dtype, Storage)                                                                                             \
    KERNEL(vectors, THREADS, dtype, Storage)
FOR_EACH_DTYPE(KERNELS)
