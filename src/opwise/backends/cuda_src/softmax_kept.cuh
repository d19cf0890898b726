// A row whose exponentials are kept as numbers, by one block or by those of a cluster: reads once, writes once, an exponential an element.
//
// A warp's exponentials are relative to its own maximum, so none waits for the row's; what the row is found to be is a factor to them.
#pragma once
#include "softmax_small.cuh"

constexpr int KEPT_THREADS = 256;  // of a cluster's blocks; one block alone has any number of whole warps, 512 at most
// By an element's bytes, of a cluster's blocks: 16-byte pieces a thread, which are as many registers as elements, and blocks a multiprocessor.
template <int SIZE> struct KeptBlock {
    static constexpr int PIECES = SIZE == 4 ? 4 : 8;
    static constexpr unsigned PER_MULTIPROCESSOR = SIZE == 4 ? 4 : 3;
};

// The row's BLOCKS * blockDim.x * PIECES pieces at most. Row blockIdx.x / BLOCKS is this cluster's. PHASES: as begin_apart has them.
template <class Storage, int BLOCKS, int PIECES, unsigned PHASES = 1>
__device__ __forceinline__ void softmax_kept(const Storage *x, Storage *out, unsigned rows, unsigned columns) {
    using P = Piece<Storage, 16>;
    using Raw = typename P::Raw;
    constexpr bool SHARED = BLOCKS > 1;
    constexpr int PAIRS = SHARED ? BLOCKS * KEPT_THREADS / 32 : 32;
    __shared__ float2 told[PAIRS];  // a pair of each warp
    __shared__ Bell all_told;

    const PartOfRow<Storage, BLOCKS> share(columns);
    const int thread = threadIdx.x, threads = SHARED ? KEPT_THREADS : blockDim.x, lane = thread % 32, warp = thread / 32;
    const int left = share.left(thread);
    const unsigned long long start = share.start(thread);
    const Raw *from = reinterpret_cast<const Raw *>(x) + start;
    Raw *to = reinterpret_cast<Raw *>(out) + start;
    if constexpr (SHARED) share.template begin<PHASES>(&all_told, PAIRS * sizeof(float2), rows);

    Raw raw[PIECES];
#pragma unroll
    for (int k = 0; k < PIECES; k++) raw[k] = k * threads < left ? from[k * threads] : P::lowest();
    if constexpr (SHARED) cluster_wait();
    Raw greatest = raw[0];
#pragma unroll
    for (int k = 1; k < PIECES; k++) greatest = P::greater(greatest, raw[k]);
    float values[PIECES * P::COUNT], highest = Maximum::neutral(), sums[4] = {};
    P::unpack(greatest, values);
#pragma unroll
    for (int j = 0; j < P::COUNT; j++) highest = fmaxf(highest, values[j]);
    highest = over_warp<Maximum>(highest);
    const float shift = cluster_shift(highest);
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
        float *some = values + k * P::COUNT;
        P::unpack(raw[k], some);
#pragma unroll
        for (int j = 0; j < P::COUNT; j++) sums[j % 4] += some[j] = biased_exp(some[j], shift);
    }
    const float sum = over_warp<Sum>((sums[0] + sums[1]) + (sums[2] + sums[3]));
    if constexpr (SHARED) {
        if (lane < BLOCKS) send_to_block(told + (share.rank * (KEPT_THREADS / 32) + warp), &all_told, lane, highest, sum);
        wait_for_cluster(&all_told);
    } else {
        if (lane == 0) told[warp] = make_float2(highest, sum);
        __syncthreads();
    }

    const float2 of_row = told_of_cluster<PAIRS>(told, SHARED ? PAIRS : threads / 32);
    // Biased as the exponentials are: neither of two factors falls below what float32 holds where their product does not.
    const float factor = biased_exp(highest, of_row.x), scale = 1.0f / of_row.y * power_of_2(-BIAS);
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
        if (k * threads < left) {
            float *some = values + k * P::COUNT;
#pragma unroll
            for (int j = 0; j < P::COUNT; j++) some[j] = some[j] * factor * scale;
            to[k * threads] = P::pack(some);
        }
    }
}

#define SOFTMAX_KEPT_KERNEL(dtype, Storage)                                                                                                \
    IF_WANTED(softmax_##dtype##_kept1_v16,                                                                                                 \
    extern "C" __global__ void __launch_bounds__(512)                                                                                      \
        softmax_##dtype##_kept1_v16(const Storage *__restrict__ x, Storage *__restrict__ out, long long rows, long long columns) {         \
        softmax_kept<Storage, 1, 2>(x, out, static_cast<unsigned>(rows), static_cast<unsigned>(columns));                                  \
    })
#define SOFTMAX_KEPT_CLUSTER(dtype, Storage, blocks)                                                                                       \
    IF_WANTED(softmax_##dtype##_kept##blocks##_v16,                                                                                        \
    extern "C" __global__ void OF_CLUSTERS(blocks) __launch_bounds__(KEPT_THREADS, KeptBlock<sizeof(Storage)>::PER_MULTIPROCESSOR)         \
        softmax_##dtype##_kept##blocks##_v16(const Storage *__restrict__ x, Storage *__restrict__ out, long long rows,                     \
                                             long long columns) {                                                                          \
        using Block = KeptBlock<sizeof(Storage)>;                                                                                          \
        WHERE_THERE_ARE_CLUSTERS(softmax_kept<Storage, blocks, Block::PIECES, Block::PER_MULTIPROCESSOR>(                                  \
            x, out, static_cast<unsigned>(rows), static_cast<unsigned>(columns)));                                                         \
    })
#define SOFTMAX_KEPT_4(dtype, Storage)                                                                                                     \
    SOFTMAX_KEPT_KERNEL(dtype, Storage)                                                                                                    \
    SOFTMAX_KEPT_CLUSTER(dtype, Storage, 8)                                                                                                \
    SOFTMAX_KEPT_CLUSTER(dtype, Storage, 16)
#define SOFTMAX_KEPT_2(dtype, Storage)                                                                                                     \
    SOFTMAX_KEPT_KERNEL(dtype, Storage)                                                                                                    \
    SOFTMAX_KEPT_CLUSTER(dtype, Storage, 2)                                                                                                \
    SOFTMAX_KEPT_CLUSTER(dtype, Storage, 4)                                                                                                \
    SOFTMAX_KEPT_CLUSTER(dtype, Storage, 8)
