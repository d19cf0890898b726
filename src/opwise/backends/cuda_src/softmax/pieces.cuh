// softmax on unconverted 16-byte pieces: maxima and sums, exponentials, results.
#pragma once
#include "common/elements.cuh"

// 2^BIAS exp(x - shift). The bias cancels in the division by the sum. It keeps results that float32 can hold above 2^-126, below which the
// fast exponential flushes. It adds a rounding error of at most 2^-20; rows here, above 1024 columns, are allowed 80 * 2^-24.
constexpr float BIAS = 30.0f;
__device__ __forceinline__ float power_of_2(float y) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(y));
    return power;
}
__device__ __forceinline__ float biased_exp(float x, float shift) { return power_of_2(fmaf(x - shift, 1.4426950409f, BIAS)); }
// The factor that makes a sum relative to `from` one relative to `shift`.
__device__ __forceinline__ float rescale(float from, float shift) { return power_of_2((from - shift) * 1.4426950409f); }
__device__ __forceinline__ float cluster_shift(float maximum) { return maximum == Maximum::neutral() ? 0.0f : maximum; }

// Makes the compiler unpack a piece again: otherwise it would keep the floats, for 16-bit elements in twice the registers.
__device__ __forceinline__ void forget(uint4 &raw) { asm volatile("" : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w)); }
__device__ __forceinline__ void forget(float4 &raw) { asm volatile("" : "+f"(raw.x), "+f"(raw.y), "+f"(raw.z), "+f"(raw.w)); }

// The running maximum, and the sum of the biased exponentials relative to it.
template <class Storage> struct Seen {
    using P = Piece<Storage, 16>;
    float maximum = Maximum::neutral(), sum = 0.0f;

    template <int N> __device__ __forceinline__ void add(const typename P::Raw (&raw)[N]) {
        typename P::Raw greatest = raw[0];
#pragma unroll
        for (int k = 1; k < N; k++) greatest = P::greater(greatest, raw[k]);
        float values[P::COUNT];
        P::unpack(greatest, values);
        float highest = maximum;
#pragma unroll
        for (int j = 0; j < P::COUNT; j++) highest = fmaxf(highest, values[j]);
        const float shift = cluster_shift(highest);
        float fresh[4] = {};
#pragma unroll
        for (int k = 0; k < N; k++) {
            P::unpack(raw[k], values);
#pragma unroll
            for (int j = 0; j < P::COUNT; j++) fresh[j % 4] += biased_exp(values[j], shift);
        }
        sum = sum * rescale(maximum, shift) + ((fresh[0] + fresh[1]) + (fresh[2] + fresh[3]));
        maximum = highest;
    }
};

// The warp's maximum and sum relative to it, from each lane's.
__device__ __forceinline__ float2 pair_over_warp(float maximum, float sum) {
    const float highest = over_warp<Maximum>(maximum);
    return make_float2(highest, over_warp<Sum>(sum * rescale(maximum, cluster_shift(highest))));
}

template <class Storage>
__device__ __forceinline__ typename Piece<Storage, 16>::Raw softmax_of(typename Piece<Storage, 16>::Raw raw, float shift, float scale) {
    using P = Piece<Storage, 16>;
    float values[P::COUNT];
    P::unpack(raw, values);
#pragma unroll
    for (int j = 0; j < P::COUNT; j++) values[j] = biased_exp(values[j], shift) * scale;
    return P::pack(values);
}
