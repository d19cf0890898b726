// The rungs from the definition of softmax to softmax.cu's kernels, each with one more idea (docs/kernels.md).
// Over the rows of a row-major matrix, any rows, columns >= 1: out = exp(x - max) / sum exp(x - max).
//
// softmax_ladder_textbook_<dtype>   a thread per row: three passes
// softmax_ladder_coalesced_<dtype>  a block per row: neighbouring threads take neighbouring elements; three passes
// softmax_ladder_online_<dtype>     maximum and sum in one pass: two passes
// softmax_ladder_registers_<dtype>  read once and kept in registers, up to 32 elements per thread: columns <= 32 blockDim.x
//
// They are for reading and comparison. A row that is -inf throughout, or contains inf or NaN, becomes NaN.
#include "common/elements.cuh"

// exp2f keeps subnormal results. x is the shifted value, rounded before it is scaled: otherwise rows far from zero would lose all digits.
__device__ __forceinline__ float e_to(float x) { return exp2f(x * 1.4426950409f); }
// The value to subtract. 0 if a thread has only seen -inf or nothing, since -inf - -inf is NaN.
__device__ __forceinline__ float shift_of(float maximum) { return maximum == Maximum::neutral() ? 0.0f : maximum; }

template <class Storage> __device__ __forceinline__ void textbook(const Storage *x, Storage *out, long long rows, long long columns) {
    const long long row = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (row >= rows) return;
    x += row * columns, out += row * columns;
    float maximum = Maximum::neutral(), sum = 0.0f;
    for (long long i = 0; i < columns; i++) maximum = fmaxf(maximum, to_float(x[i]));
    for (long long i = 0; i < columns; i++) sum += e_to(to_float(x[i]) - maximum);
    const float scale = 1.0f / sum;
    for (long long i = 0; i < columns; i++) from_float(e_to(to_float(x[i]) - maximum) * scale, out[i]);
}

constexpr int THREADS = 128;

template <class Storage> __device__ __forceinline__ void coalesced(const Storage *x, Storage *out, long long rows, long long columns) {
    __shared__ float maxima[32], sums[32];
    x += blockIdx.x * columns, out += blockIdx.x * columns;
    float maximum = Maximum::neutral(), sum = 0.0f;
    for (long long i = threadIdx.x; i < columns; i += THREADS) maximum = fmaxf(maximum, to_float(x[i]));
    maximum = over_block<Maximum>(maximum, maxima);
    for (long long i = threadIdx.x; i < columns; i += THREADS) sum += e_to(to_float(x[i]) - maximum);
    const float scale = 1.0f / over_block<Sum>(sum, sums);
    for (long long i = threadIdx.x; i < columns; i += THREADS) from_float(e_to(to_float(x[i]) - maximum) * scale, out[i]);
}

constexpr int AT_ONCE = 4;  // elements of a thread's step: one rescaling of the sum, and all loads in flight at once

template <class Storage> __device__ __forceinline__ void online(const Storage *x, Storage *out, long long rows, long long columns) {
    __shared__ float maxima[32], sums[32];
    x += blockIdx.x * columns, out += blockIdx.x * columns;
    float maximum = Maximum::neutral(), sum = 0.0f;
    for (long long start = threadIdx.x; start < columns; start += AT_ONCE * THREADS) {
        float values[AT_ONCE], greater = maximum, more = 0.0f;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const long long i = start + j * THREADS;
            values[j] = i < columns ? to_float(x[i]) : Maximum::neutral();
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) greater = fmaxf(greater, values[j]);
        const float shift = shift_of(greater);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) more += e_to(values[j] - shift);
        sum = sum * e_to(maximum - shift) + more;  // the old sum is relative to the old maximum
        maximum = greater;
    }
    const float shift = shift_of(over_block<Maximum>(maximum, maxima));
    const float scale = 1.0f / over_block<Sum>(sum * e_to(maximum - shift), sums);
    for (long long i = threadIdx.x; i < columns; i += THREADS) from_float(e_to(to_float(x[i]) - shift) * scale, out[i]);
}

constexpr int MOST_THREADS = 512, HELD = 32;  // elements per thread; registers cannot be indexed, so the loops are unrolled

template <class Storage> __device__ __forceinline__ void registers(const Storage *x, Storage *out, long long rows, long long columns) {
    __shared__ float maxima[32], sums[32];
    x += blockIdx.x * columns + threadIdx.x, out += blockIdx.x * columns + threadIdx.x;
    const int left = static_cast<int>(columns) - threadIdx.x, step = blockDim.x;
    float held[HELD], maximum = Maximum::neutral(), sum = 0.0f;
#pragma unroll
    for (int j = 0; j < HELD; j++) held[j] = j * step < left ? to_float(x[j * step]) : Maximum::neutral();
#pragma unroll
    for (int j = 0; j < HELD; j++) maximum = fmaxf(maximum, held[j]);
    const float shift = shift_of(over_block<Maximum>(maximum, maxima));
#pragma unroll
    for (int j = 0; j < HELD; j++) sum += held[j] = e_to(held[j] - shift);
    const float scale = 1.0f / over_block<Sum>(sum, sums);
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        if (j * step < left) from_float(held[j] * scale, out[j * step]);
    }
}

#define KERNEL(rung, threads, dtype, Storage)                                                                                              \
    IF_WANTED(softmax_ladder_##rung##_##dtype,                                                                                             \
    extern "C" __global__ void __launch_bounds__(threads)                                                                                  \
        softmax_ladder_##rung##_##dtype(const Storage *__restrict__ x, Storage *__restrict__ out, long long rows, long long columns) {     \
        rung<Storage>(x, out, rows, columns);                                                                                              \
    })
#define KERNELS(dtype, Storage, size)                                                                                                      \
    KERNEL(textbook, THREADS, dtype, Storage)                                                                                              \
    KERNEL(coalesced, THREADS, dtype, Storage)                                                                                             \
    KERNEL(online, THREADS, dtype, Storage)                                                                                                \
    KERNEL(registers, MOST_THREADS, dtype, Storage)
FOR_EACH_DTYPE(KERNELS)
