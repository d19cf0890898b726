// rmsnorm over the rows of a row-major matrix: out = x / sqrt(mean(x^2) + eps) * weight. Any rows, columns >= 1.
//
// rmsnorm_<dtype>_v<bytes>  a block a row, which it reads twice, the second time from cache. v16 asks for 16-byte aligned tensors and rows.
#include "common/elements.cuh"

constexpr float EPSILON = 1e-6f;

template <class Storage, int BYTES>
__device__ __forceinline__ void rmsnorm(const Storage *__restrict__ x, const Storage *__restrict__ weight, Storage *__restrict__ out,
                                        long long columns) {
    using P = Piece<Storage, BYTES>;
    const auto *from = reinterpret_cast<const typename P::Raw *>(x + blockIdx.x * columns);
    const auto *weights = reinterpret_cast<const typename P::Raw *>(weight);
    auto *to = reinterpret_cast<typename P::Raw *>(out + blockIdx.x * columns);
    const long long pieces = columns / P::COUNT;
    float values[P::COUNT], factors[P::COUNT], sum = 0.0f;
    for (long long k = threadIdx.x; k < pieces; k += blockDim.x) {
        P::unpack(from[k], values);
#pragma unroll
        for (int j = 0; j < P::COUNT; j++) sum = fmaf(values[j], values[j], sum);
    }
    __shared__ float shared[32];
    const float scale = rsqrtf(over_block<Sum>(sum, shared) / static_cast<float>(columns) + EPSILON);
    for (long long k = threadIdx.x; k < pieces; k += blockDim.x) {
        P::unpack(from[k], values);
        P::unpack(weights[k], factors);
#pragma unroll
        for (int j = 0; j < P::COUNT; j++) values[j] = values[j] * scale * factors[j];
        to[k] = P::pack(values);
    }
}

#define RMSNORM(dtype, Storage, bytes)                                                                                                     \
    IF_WANTED(rmsnorm_##dtype##_v##bytes,                                                                                                  \
    extern "C" __global__ void __launch_bounds__(512)                                                                                      \
        rmsnorm_##dtype##_v##bytes(const Storage *x, const Storage *weight, Storage *out, long long columns) {                             \
        rmsnorm<Storage, bytes>(x, weight, out, columns);                                                                                  \
    })
#define RMSNORM_BOTH(dtype, Storage, size) RMSNORM(dtype, Storage, 16) RMSNORM(dtype, Storage, size)
FOR_EACH_DTYPE(RMSNORM_BOTH)
