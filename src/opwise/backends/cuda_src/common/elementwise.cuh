// out[i] = Function::of(x[i]) for any n >= 1, also above 2^31.
#pragma once
#include "common/elements.cuh"

constexpr int MAP_THREADS = 256;

// A block has MAP_THREADS * PIECES pieces. One 16-byte piece per thread: on an H200 two lose 3 % of the bandwidth, four lose 4 %, and
// loads that do not allocate in L1 another 3 %. Single elements, for unaligned addresses, are all loaded before the first is used.
// With 16-byte pieces x and out are 16-byte aligned, and block 0 also computes the few elements after the last whole piece.
template <class Function, class Storage, int BYTES, int PIECES>
__device__ __forceinline__ void map(const Storage *__restrict__ x, Storage *__restrict__ out, long long n) {
    using P = Piece<Storage, BYTES>;
    const long long pieces = n / P::COUNT;
    const long long first = blockIdx.x * static_cast<long long>(MAP_THREADS * PIECES) + threadIdx.x;
    const auto *from = reinterpret_cast<const typename P::Raw *>(x);
    auto *to = reinterpret_cast<typename P::Raw *>(out);
    typename P::Raw raw[PIECES];
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
        if (first + k * MAP_THREADS < pieces) raw[k] = from[first + k * MAP_THREADS];
    }
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
        if (first + k * MAP_THREADS < pieces) {
            float values[P::COUNT];
            P::unpack(raw[k], values);
#pragma unroll
            for (int j = 0; j < P::COUNT; j++) values[j] = Function::of(values[j]);
            to[first + k * MAP_THREADS] = P::pack(values);
        }
    }
    const long long rest = pieces * P::COUNT + threadIdx.x;
    if (P::COUNT > 1 && blockIdx.x == 0 && rest < n) from_float(Function::of(to_float(x[rest])), out[rest]);
}

// <op>_<dtype>_v16: a 16-byte piece per thread. <op>_<dtype>_v<size>: 8 single elements per thread, for unaligned addresses.
#define MAP_KERNEL(op, Function, dtype, Storage, bytes, pieces)                                                                            \
    IF_WANTED(op##_##dtype##_v##bytes,                                                                                                     \
    extern "C" __global__ void __launch_bounds__(MAP_THREADS)                                                                              \
        op##_##dtype##_v##bytes(const Storage *__restrict__ x, Storage *__restrict__ out, long long n) {                                   \
        map<Function, Storage, bytes, pieces>(x, out, n);                                                                                  \
    })
