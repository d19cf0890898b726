// softmax over the rows of a row-major matrix: out = exp(x - max) / sum exp(x - max). Any rows, columns >= 1.
//
// softmax_<dtype>_warp<E>_v<bytes>   blockDim.x lanes per row of at most blockDim.x * E columns, in registers: reads once
// softmax_<dtype>_short<L>x<E>       L lanes per row of at most L * E columns, staged in shared memory (short.cuh): reads once
// softmax_<dtype>_block<E>_v<bytes>  a block per row of at most blockDim.x * E columns, in registers: reads once
// softmax_<dtype>_long_v<bytes>      a block per row of any length: reads twice
// softmax_<dtype>_cluster<B>_v16     B blocks per row (cluster.cuh): reads once what they hold, the rest twice; B > 1: from sm_90 on
// softmax_<dtype>_cluster<B>_<T>_v16 B blocks of T threads per row of up to 1 MiB (cluster.cuh): reads once; from sm_90 on
//
// All write once. v16 needs 16-byte aligned x, out and rows; otherwise v<size of an element>.
//
// A row that is -inf throughout, or contains inf or NaN, becomes NaN: its sum is 0 or NaN.
#include "common/elements.cuh"
#include "softmax/cluster.cuh"

constexpr float LOG2_E = 1.4426950409f;

// The value to subtract. 0 for a row of -inf, to avoid -inf - -inf; its result is 0 / 0.
__device__ __forceinline__ float shift_of(float maximum) { return maximum == Maximum::neutral() ? 0.0f : maximum; }
// exp(x - shift). The difference is rounded before it is scaled: one fma with shift * log2(e) would have that product's rounding error,
// which does not vanish with x - shift. exp2f keeps subnormal results.
__device__ __forceinline__ float exp_of(float x, float shift) { return exp2f((x - shift) * LOG2_E); }
// A multiple of it, which cancels in the division by the sum. For 16-bit types 2^8 times it, in half the instructions: the smallest nonzero
// result is then above 2^-126, below which the fast exponential gives 0.
__device__ __forceinline__ float scaled_exp(float x, float shift, float) { return exp_of(x, shift); }
template <class Half> __device__ __forceinline__ float scaled_exp(float x, float shift, Half) {
    return power_of_2(fmaf(x - shift, LOG2_E, 8.0f));
}

// PIECES pieces of a row per thread: piece k starts at column (k * threads + thread) * COUNT. Beyond the row's end all is -inf.
template <class Storage, int BYTES, int PIECES> struct RowInRegisters {
    using P = Piece<Storage, BYTES>;
    float values[PIECES * P::COUNT];

    __device__ __forceinline__ void load(const Storage *row, int thread, int threads, int columns) {
        typename P::Raw raw[PIECES];
#pragma unroll
        for (int k = 0; k < PIECES; k++) {
            const int column = (k * threads + thread) * P::COUNT;
            raw[k] = column < columns ? *reinterpret_cast<const typename P::Raw *>(row + column) : P::lowest();
        }
#pragma unroll
        for (int k = 0; k < PIECES; k++) P::unpack(raw[k], values + k * P::COUNT);
    }

    __device__ __forceinline__ float maximum() const {
        float result = values[0];
#pragma unroll
        for (int i = 1; i < PIECES * P::COUNT; i++) result = fmaxf(result, values[i]);
        return fmaxf(result, Maximum::neutral());  // never NaN
    }

    // Replaces each value by its scaled exponential and returns this thread's sum. Skips values that are beyond the row for all threads.
    __device__ __forceinline__ float exponentiate(float shift, int threads, int columns) {
        float sums[4] = {};
#pragma unroll
        for (int i = 0; i < PIECES * P::COUNT; i++) {
            if (i % (P::COUNT > 4 ? P::COUNT : 4) == 0 && i * threads >= columns) break;
            sums[i % 4] += values[i] = scaled_exp(values[i], shift, Storage{});
        }
        return (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }

    __device__ __forceinline__ void store(Storage *row, int thread, int threads, int columns, float scale) {
#pragma unroll
        for (int k = 0; k < PIECES; k++) {
            const int column = (k * threads + thread) * P::COUNT;
            if (column >= columns) break;
#pragma unroll
            for (int j = 0; j < P::COUNT; j++) values[k * P::COUNT + j] *= scale;
            *reinterpret_cast<typename P::Raw *>(row + column) = P::pack(values + k * P::COUNT);
        }
    }
};

constexpr int WARP_THREADS = 128;

// Reduces over the neighbouring lanes of a row: a power of two up to 32.
template <class Combine> __device__ __forceinline__ float over_lanes(float x, int lanes) {
    for (int distance = lanes / 2; distance > 0; distance /= 2) x = Combine::of(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
}

// blockDim.x lanes per row with 16-byte pieces, else a warp: a compile-time constant saves an instruction per element.
template <class Storage, int BYTES, int ELEMENTS>
__device__ __forceinline__ void softmax_warp(const Storage *x, Storage *out, long long rows, long long columns) {
    const int lanes = BYTES == 16 ? blockDim.x : 32;
    const long long row = blockIdx.x * static_cast<long long>(blockDim.y) + threadIdx.y;
    const int width = row < rows ? static_cast<int>(columns) : 0;  // whole warps take part; a row beyond the last one is -inf
    RowInRegisters<Storage, BYTES, ELEMENTS / Piece<Storage, BYTES>::COUNT> part;
    part.load(x + row * columns, threadIdx.x, lanes, width);
    const float shift = shift_of(over_lanes<Maximum>(part.maximum(), lanes));
    const float sum = over_lanes<Sum>(part.exponentiate(shift, lanes, width), lanes);
    part.store(out + row * columns, threadIdx.x, lanes, width, 1.0f / sum);
}

#include "softmax/short.cuh"

template <class Storage, int BYTES, int ELEMENTS>
__device__ __forceinline__ void softmax_block(const Storage *x, Storage *out, long long rows, long long columns) {
    __shared__ float maxima[32], sums[32];
    const long long start = blockIdx.x * columns;
    const int width = static_cast<int>(columns);
    RowInRegisters<Storage, BYTES, ELEMENTS / Piece<Storage, BYTES>::COUNT> part;
    part.load(x + start, threadIdx.x, blockDim.x, width);
    const float shift = shift_of(over_block<Maximum>(part.maximum(), maxima));
    const float sum = over_block<Sum>(part.exponentiate(shift, blockDim.x, width), sums);
    part.store(out + start, threadIdx.x, blockDim.x, width, 1.0f / sum);
}

constexpr int LONG_THREADS = 1024;  // few rows at a time, so that the second pass reads much from L2

// First pass: maximum and sum together; the sum is rescaled when the maximum grows. Second pass: backwards from the row's end, which L2
// still holds. A step covers LONG_THREADS * PIECES pieces of the row.
template <class Storage, int BYTES, int PIECES>
__device__ __forceinline__ void softmax_long(const Storage *x, Storage *out, long long rows, long long columns) {
    using P = Piece<Storage, BYTES>;
    __shared__ float maxima[32], sums[32];
    const auto *from = reinterpret_cast<const typename P::Raw *>(x + blockIdx.x * columns);
    auto *to = reinterpret_cast<typename P::Raw *>(out + blockIdx.x * columns);
    const long long pieces = columns / P::COUNT;
    constexpr int STEP = LONG_THREADS * PIECES;

    float maximum = Maximum::neutral(), sum = 0.0f;
    for (long long i = threadIdx.x; i < pieces; i += STEP) {
        typename P::Raw raw[PIECES];
        float values[PIECES * P::COUNT];
#pragma unroll
        for (int k = 0; k < PIECES; k++) {
            raw[k] = i + k * LONG_THREADS < pieces ? from[i + k * LONG_THREADS] : P::lowest();
        }
#pragma unroll
        for (int k = 0; k < PIECES; k++) P::unpack(raw[k], values + k * P::COUNT);
        float greatest = maximum;
#pragma unroll
        for (int j = 0; j < PIECES * P::COUNT; j++) greatest = fmaxf(greatest, values[j]);
        const float shift = shift_of(greatest);
        float fresh[2] = {};
#pragma unroll
        for (int j = 0; j < PIECES * P::COUNT; j++) fresh[j % 2] += exp_of(values[j], shift);
        sum = sum * exp_of(maximum, shift) + (fresh[0] + fresh[1]);
        maximum = greatest;
    }
    const float shift = shift_of(over_block<Maximum>(maximum, maxima));
    const float scale = 1.0f / over_block<Sum>(sum * exp_of(maximum, shift), sums);

    for (long long i = (pieces - 1) / STEP * STEP + threadIdx.x; i >= 0; i -= STEP) {
        typename P::Raw raw[PIECES];
#pragma unroll
        for (int k = 0; k < PIECES; k++) {
            if (i + k * LONG_THREADS < pieces) raw[k] = from[i + k * LONG_THREADS];
        }
#pragma unroll
        for (int k = 0; k < PIECES; k++) {
            if (i + k * LONG_THREADS >= pieces) break;
            float values[P::COUNT];
            P::unpack(raw[k], values);
#pragma unroll
            for (int j = 0; j < P::COUNT; j++) values[j] = exp_of(values[j], shift) * scale;
            to[i + k * LONG_THREADS] = P::pack(values);
        }
    }
}

#define SOFTMAX_KERNEL(name, compute, threads, dtype, Storage, elements, bytes)                                                            \
    IF_WANTED(softmax_##dtype##_##name##_v##bytes,                                                                                         \
    extern "C" __global__ void __launch_bounds__(threads)                                                                                  \
        softmax_##dtype##_##name##_v##bytes(const Storage *__restrict__ x, Storage *__restrict__ out, long long rows, long long columns) { \
        compute<Storage, bytes, elements>(x, out, rows, columns);                                                                          \
    })
#define SOFTMAX_WARPS_AND_LONG(dtype, Storage, bytes, long_pieces)                                                                         \
    SOFTMAX_KERNEL(warp8, softmax_warp, WARP_THREADS, dtype, Storage, 8, bytes)                                                            \
    SOFTMAX_KERNEL(warp16, softmax_warp, WARP_THREADS, dtype, Storage, 16, bytes)                                                          \
    SOFTMAX_KERNEL(warp32, softmax_warp, WARP_THREADS, dtype, Storage, 32, bytes)                                                          \
    SOFTMAX_KERNEL(long, softmax_long, LONG_THREADS, dtype, Storage, long_pieces, bytes)
// `threads` bounds the registers per thread: with 64, an SM has room for two blocks of 512.
#define SOFTMAX_BLOCKS(dtype, Storage, bytes, threads)                                                                                     \
    SOFTMAX_KERNEL(warp4, softmax_warp, WARP_THREADS, dtype, Storage, 4, bytes)                                                            \
    SOFTMAX_KERNEL(block8, softmax_block, threads, dtype, Storage, 8, bytes)                                                               \
    SOFTMAX_KERNEL(block16, softmax_block, threads, dtype, Storage, 16, bytes)                                                             \
    SOFTMAX_KERNEL(block32, softmax_block, threads, dtype, Storage, 32, bytes)
// In 16-byte pieces, by the element's size. cluster.cuh takes longer rows.
#define SOFTMAX_IN_PIECES_4(dtype, Storage)                                                                                                \
    SOFTMAX_KERNEL(warp4, softmax_warp, WARP_THREADS, dtype, Storage, 4, 16)                                                               \
    SOFTMAX_KERNEL(block16, softmax_block, 512, dtype, Storage, 16, 16)
#define SOFTMAX_IN_PIECES_2(dtype, Storage) SOFTMAX_KERNEL(block16, softmax_block, 512, dtype, Storage, 16, 16)
#define SOFTMAX_KERNELS(dtype, Storage, size)                                                                                              \
    SOFTMAX_WARPS_AND_LONG(dtype, Storage, 16, size)                                                                                       \
    SOFTMAX_WARPS_AND_LONG(dtype, Storage, size, 8)                                                                                        \
    SOFTMAX_SHORT_KERNEL(dtype, Storage, 1, 8) SOFTMAX_SHORT_KERNEL(dtype, Storage, 1, 16) SOFTMAX_SHORT_KERNEL(dtype, Storage, 1, 32)     \
    SOFTMAX_SHORT_KERNEL(dtype, Storage, 2, 32) SOFTMAX_SHORT_KERNEL(dtype, Storage, 4, 32)                                                \
    SOFTMAX_IN_PIECES_##size(dtype, Storage)                                                                                               \
    SOFTMAX_BLOCKS(dtype, Storage, size, 512)                                                                                              \
    SOFTMAX_LONG_ROW_KERNEL(dtype, Storage)                                                                                                \
    SOFTMAX_CLUSTER_KERNEL(dtype, Storage, 2) SOFTMAX_CLUSTER_KERNEL(dtype, Storage, 4)                                                    \
    SOFTMAX_CLUSTER_KERNEL(dtype, Storage, 8) SOFTMAX_CLUSTER_KERNEL(dtype, Storage, 16)                                                   \
    SOFTMAX_SMALL_KERNEL(dtype, Storage, 2, 192) SOFTMAX_SMALL_KERNEL(dtype, Storage, 4, 192)                                              \
    SOFTMAX_SMALL_KERNEL(dtype, Storage, 8, 192) SOFTMAX_SMALL_KERNEL(dtype, Storage, 16, 192)
FOR_EACH_DTYPE(SOFTMAX_KERNELS)
