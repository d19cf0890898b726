// What softmax of rows that are kept as they were read makes of 16-byte pieces: maxima and sums, exponentials, results.
#pragma once
#include "common/elements.cuh"

// 2^BIAS exp(x - shift). The bias cancels in the quotient by the sum. With it the fast exponential, which flushes what is below 2^-126,
// loses nothing that float32 can hold. Its rounding is an error of 2^-20 at most, where a row this long is allowed 700 times 2^-24.
constexpr float BIAS = 30.0f;
__device__ __forceinline__ float power_of_2(float y) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(y));
    return power;
}
__device__ __forceinline__ float biased_exp(float x, float shift) { return power_of_2(fmaf(x - shift, 1.4426950409f, BIAS)); }
// What a sum relative to `from` is to be multiplied by, to be one relative to `shift`.
__device__ __forceinline__ float rescale(float from, float shift) { return power_of_2((from - shift) * 1.4426950409f); }
__device__ __forceinline__ float cluster_shift(float maximum) { return maximum == Maximum::neutral() ? 0.0f : maximum; }

// Hides from the compiler that a piece was unpacked before: it would keep the floats, twice the registers, in place of the piece.
__device__ __forceinline__ void forget(uint4 &raw) { asm volatile("" : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w)); }
__device__ __forceinline__ void forget(float4 &raw) { asm volatile("" : "+f"(raw.x), "+f"(raw.y), "+f"(raw.z), "+f"(raw.w)); }

// The maximum of what was seen, and the sum of the biased exponentials relative to it.
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

// Each lane's maximum and sum relative to it -> the warp's.
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
