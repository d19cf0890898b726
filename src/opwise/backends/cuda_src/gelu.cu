// gelu, tanh form: out = x/2 (1 + tanh a), a = sqrt(2/pi) (x + 0.044715 x^3).
#include "common/elementwise.cuh"

// (1 + tanh a) / 2 = 1 / (1 + exp(-2a)): one exponential and one reciprocal, no cancellation below 0 and no inf/inf above.
//
// Error, in u32 = 2^-24: ex2.approx and rcp.approx have relative errors below 3 and 2, and the exponent y about 3, which exp multiplies
// by |y|. The result's error is below u32 (2 |r| + 3 |x|); 4 u32 (|x| + |r|) is allowed (ops/gelu.py).
// .ftz is safe: a flushed 2^y vanishes in 1 + 2^y anyway, and x times a reciprocal below 2^-126 is below 2^-110.
// 2^y = inf gives x * 0: -0 for finite x, NaN for x = -inf, as by the definition.
struct Gelu {
    __device__ __forceinline__ static float of(float x) {
        constexpr float LINEAR = -2.302208198f;   // -2 sqrt(2/pi) log2(e)
        constexpr float CUBIC = -0.1029432397f;   // 0.044715 times that
        const float y = x * fmaf(CUBIC * x, x, LINEAR);
        float power, gate;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(y));
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(gate) : "f"(1.0f + power));
        return x * gate;
    }
};

#define GELU_KERNELS(dtype, Storage, size)                                                                                                 \
    MAP_KERNEL(gelu, Gelu, dtype, Storage, 16, 1)                                                                                          \
    MAP_KERNEL(gelu, Gelu, dtype, Storage, size, 8)
FOR_EACH_DTYPE(GELU_KERNELS)

// The kernel of CS336, lecture 6. Its constants are doubles, so every step, also tanh, is computed in double precision, at half the rate of
// float32 at best and at a 64th of it on most GPUs.
extern "C" __global__ void gelu_float32_textbook(const float *x, float *out, long long n) {
    const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (i >= n) return;
    const double inner = 0.79788456 * (x[i] + 0.044715 * x[i] * x[i] * x[i]);
    out[i] = static_cast<float>(0.5 * x[i] * (1.0 + tanh(inner)));
}
