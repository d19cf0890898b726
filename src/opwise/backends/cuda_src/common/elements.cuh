// Elements of a tensor in memory and in registers, and pieces of several elements. All kernels compute in float32, on sm_80 or later.
//
// Subnormals must be kept: compile without -ftz=true (the default of nvcc and NVRTC).
#pragma once
#include "common/one_kernel.cuh"
#include "common/storage.cuh"

// Expands KERNEL(name of the dtype, its C++ type, its size in bytes) for each dtype.
#define FOR_EACH_DTYPE(KERNEL) KERNEL(float32, float, 4) KERNEL(float16, float16, 2) KERNEL(bfloat16, bfloat16, 2)

// The elementwise maximum of two pairs; a number wins over NaN.
__device__ __forceinline__ unsigned greater_pair(unsigned a, unsigned b, float16) {
    unsigned pair;
    asm("max.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
}
__device__ __forceinline__ unsigned greater_pair(unsigned a, unsigned b, bfloat16) {
    unsigned pair;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
}

__device__ __forceinline__ void minus_infinity(float &x) { x = __int_as_float(0xff800000); }
__device__ __forceinline__ void minus_infinity(float16 &x) { x.bits = 0xfc00; }
__device__ __forceinline__ void minus_infinity(bfloat16 &x) { x.bits = 0xff80; }

// A piece of a tensor, the unit of a load or store: 16 bytes if all addresses are multiples of 16, else one element.
template <class Storage, int BYTES> struct Piece {
    static_assert(BYTES == sizeof(Storage), "16 bytes or one element");
    static constexpr int COUNT = 1;
    using Raw = Storage;
    __device__ __forceinline__ static Raw lowest() {  // -inf throughout
        Raw raw;
        minus_infinity(raw);
        return raw;
    }
    __device__ __forceinline__ static void unpack(Raw raw, float *x) { x[0] = to_float(raw); }
    __device__ __forceinline__ static Raw pack(const float *x) {
        Raw raw;
        from_float(x[0], raw);
        return raw;
    }
};

template <> struct Piece<float, 16> {
    static constexpr int COUNT = 4;
    using Raw = float4;
    __device__ __forceinline__ static Raw zero() { return make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
    __device__ __forceinline__ static Raw lowest() {
        float x;
        minus_infinity(x);
        return make_float4(x, x, x, x);
    }
    __device__ __forceinline__ static Raw greater(Raw a, Raw b) {  // elementwise; a number wins over NaN
        return make_float4(fmaxf(a.x, b.x), fmaxf(a.y, b.y), fmaxf(a.z, b.z), fmaxf(a.w, b.w));
    }
    __device__ __forceinline__ static void unpack(Raw raw, float *x) { x[0] = raw.x, x[1] = raw.y, x[2] = raw.z, x[3] = raw.w; }
    __device__ __forceinline__ static Raw pack(const float *x) { return make_float4(x[0], x[1], x[2], x[3]); }
};

template <class Half> struct PieceOfHalves {
    static constexpr int COUNT = 8;
    using Raw = uint4;
    __device__ __forceinline__ static Raw zero() { return make_uint4(0, 0, 0, 0); }
    __device__ __forceinline__ static Raw lowest() {
        Half x;
        minus_infinity(x);
        const unsigned pair = x.bits * 0x10001u;
        return make_uint4(pair, pair, pair, pair);
    }
    __device__ __forceinline__ static Raw greater(Raw a, Raw b) {
        return make_uint4(greater_pair(a.x, b.x, Half{}), greater_pair(a.y, b.y, Half{}), greater_pair(a.z, b.z, Half{}),
                          greater_pair(a.w, b.w, Half{}));
    }
    __device__ __forceinline__ static void unpack(Raw raw, float *x) {
        const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[2 * i] = to_float(Half{static_cast<unsigned short>(words[i])});
            x[2 * i + 1] = to_float(Half{static_cast<unsigned short>(words[i] >> 16)});
        }
    }
    __device__ __forceinline__ static Raw pack(const float *x) {
        return make_uint4(pack_pair(x[0], x[1], Half{}), pack_pair(x[2], x[3], Half{}), pack_pair(x[4], x[5], Half{}),
                          pack_pair(x[6], x[7], Half{}));
    }
};
template <> struct Piece<float16, 16> : PieceOfHalves<float16> {};
template <> struct Piece<bfloat16, 16> : PieceOfHalves<bfloat16> {};

// ---- sums and maxima over a warp and over a block -----------------------------------------------------------------------------------

struct Sum {
    __device__ __forceinline__ static float neutral() { return 0.0f; }
    __device__ __forceinline__ static float of(float a, float b) { return a + b; }
};
struct Maximum {  // a number wins over NaN
    __device__ __forceinline__ static float neutral() {
        float x;
        minus_infinity(x);
        return x;
    }
    __device__ __forceinline__ static float of(float a, float b) { return fmaxf(a, b); }
};

// All 32 lanes must take part; all get the result.
template <class Combine> __device__ __forceinline__ float over_warp(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x = Combine::of(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
}

// All threads of a block must take part, in whole warps; all get the result. `shared` has one float per warp (at most 32) and may be reused
// only after a later barrier.
template <class Combine> __device__ __forceinline__ float over_block(float x, float *shared) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = over_warp<Combine>(x);
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    return over_warp<Combine>(lane < warps ? shared[lane] : Combine::neutral());
}
