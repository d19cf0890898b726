// The 16-bit storage types, and their conversions to and from float32. No header is included, so that NVRTC needs no other include path.
#pragma once

struct float16 {
    unsigned short bits;
};
struct bfloat16 {
    unsigned short bits;
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bfloat16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }
__device__ __forceinline__ float to_float(float16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

// One rounding, to nearest, ties to even. NaN stays NaN, overflow gives infinity, subnormals are kept.
__device__ __forceinline__ void from_float(float x, float &y) { y = x; }
__device__ __forceinline__ void from_float(float x, float16 &y) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
__device__ __forceinline__ void from_float(float x, bfloat16 &y) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    const unsigned bits = __float_as_uint(x);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    y.bits = static_cast<unsigned short>(nan ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

// The same for two values; `low` is first in memory.
__device__ __forceinline__ unsigned pack_pair(float low, float high, float16) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
__device__ __forceinline__ unsigned pack_pair(float low, float high, bfloat16) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
