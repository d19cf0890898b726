// softmax of a row by the blocks of a thread block cluster: read once, written once.
//
// A block keeps its part of the row unconverted: the first CLUSTER_PIECES 16-byte pieces per thread in registers, the rest in dynamic
// shared memory. The blocks exchange maxima and sums through distributed shared memory.
//
// softmax_cluster: blocks of any size, rows up to 4 MiB. The part of a longer row that does not fit is read again, partly from L2. A
// cluster of one block needs no sm_90.
// softmax_small: blocks of 192 threads, five per SM, for enough rows to fill the GPU. The number of threads is a compile-time constant, and
// a block's part always fits. A block runs for about 20 us, mostly waiting for memory, so the critical instructions are those before its
// first load, between its loads, and from the last exponential to the first store.
#pragma once
#include "common/cluster_async.cuh"
#include "softmax/pieces.cuh"

constexpr int CLUSTER_PIECES = 8;  // per thread, in 32 registers, half of the 64 that 1024 threads per SM have
constexpr int COPIED_AT_ONCE = 7;

// The blocks of a wave would all load, then all compute, then all store. So the first wave starts in phases: a cluster waits for the time
// that earlier ones need to load. pieces: in a block's part; an SM loads about one per clock.
// PHASES: blocks per SM. APART: delay per piece, in sixteenths of a clock.
template <int BLOCKS, unsigned PHASES, unsigned APART>
__device__ __forceinline__ void begin_apart(unsigned cluster, unsigned clusters, unsigned pieces) {
    constexpr unsigned SHARE = BLOCKS <= 2 ? 16 : BLOCKS <= 8 ? 15 : 14;  // sixteenths of the SMs that clusters can use
    const unsigned wave = multiprocessors() * PHASES / BLOCKS * SHARE / 16;  // at once
    if (cluster < wave && clusters >= 2 * wave) wait_clocks(cluster * PHASES / wave * (pieces * APART / 16));
}

// The row's (shift, sum relative to it), in all lanes, from the `count` pairs sent to this block, at most MOST. The loop bound is constant,
// so that all loads are in flight at once.
template <int MOST> __device__ __forceinline__ float2 told_of_cluster(const float2 *told, int count) {
    float2 pairs[(MOST + 31) / 32];
    float highest = Maximum::neutral(), total = 0.0f;
#pragma unroll
    for (int k = 0; k < (MOST + 31) / 32; k++) {
        const int i = k * 32 + threadIdx.x % 32;
        pairs[k] = i < count ? told[i] : make_float2(Maximum::neutral(), 0.0f);
        highest = fmaxf(highest, pairs[k].x);
    }
    const float shift = cluster_shift(over_warp<Maximum>(highest));
#pragma unroll
    for (int k = 0; k < (MOST + 31) / 32; k++) total += pairs[k].y * rescale(pairs[k].x, shift);
    return make_float2(shift, over_warp<Sum>(total));
}

// This cluster's row is blockIdx.x / BLOCKS. Dynamic shared memory: the part of a block's share that registers do not hold.
template <class Storage, int BLOCKS, int THREADS>
__device__ __forceinline__ void softmax_small(const Storage *x, Storage *out, unsigned rows, unsigned columns) {
    using P = Piece<Storage, 16>;
    using Raw = typename P::Raw;
    constexpr int PAIRS = BLOCKS * THREADS / 32;
    extern __shared__ __align__(128) uint4 dynamic_shared[];  // copies are slower if not aligned to cache lines
    __shared__ float2 told[PAIRS];  // a pair of each warp of the cluster: each warp sends to each block, without waiting for its own block
    __shared__ Mbarrier all_told;

    const unsigned rank = rank_in_cluster(), row = blockIdx.x / BLOCKS, pieces = columns / P::COUNT;
    const unsigned part = (pieces + BLOCKS * 8 - 1) / (BLOCKS * 8) * 8, first = min(rank * part, pieces);  // of whole cache lines
    const int thread = threadIdx.x, lane = thread % 32, left = static_cast<int>(min(part, pieces - first)) - thread;
    const unsigned long long start = row * static_cast<unsigned long long>(pieces) + first + thread;
    const Raw *from = reinterpret_cast<const Raw *>(x) + start;
    Raw *to = reinterpret_cast<Raw *>(out) + start, *shared = reinterpret_cast<Raw *>(dynamic_shared) + thread;
    mbarrier_of_cluster(&all_told, PAIRS * sizeof(float2));
    cluster_arrive();  // a block must have started before others write to its shared memory
    begin_apart<BLOCKS, 1024 / THREADS, BLOCKS == 16 ? 13 : 15>(row, rows, part);  // 13: measured at 256 x 524288

    Raw raw[CLUSTER_PIECES], staged[2];
    const int left_shared = left - CLUSTER_PIECES * THREADS;
    if (left_shared > -THREADS) {  // all of this thread's registers have a piece
#pragma unroll
        for (int k = 0; k < CLUSTER_PIECES; k++) raw[k] = from[k * THREADS];
        from += CLUSTER_PIECES * THREADS;
#pragma unroll 1
        for (int i = 0; i < left_shared; i += COPIED_AT_ONCE * THREADS) {
#pragma unroll
            for (int k = 0; k < COPIED_AT_ONCE; k++) {
                if (i + k * THREADS < left_shared) copy_to_shared(shared + i + k * THREADS, from + i + k * THREADS);
            }
        }
    } else {
#pragma unroll
        for (int k = 0; k < CLUSTER_PIECES; k++) raw[k] = k * THREADS < left ? from[k * THREADS] : P::lowest();
    }
    // The compiler moves no exponential above this point, where it would wait for loads before all copies have been issued.
    cluster_wait();

    Seen<Storage> seen;
    seen.add(raw);
    if (left_shared > 0) {  // a separate branch, so that the pieces in registers are used first
        copies_done();
#pragma unroll 1
        for (int i = 0; i < left_shared; i += 2 * THREADS) {
            staged[0] = shared[i];
            staged[1] = i + THREADS < left_shared ? shared[i + THREADS] : P::lowest();
            seen.add(staged);
        }
    }

    const float2 mine = pair_over_warp(seen.maximum, seen.sum);
    if (lane < BLOCKS) send_to_block(told + (rank * (THREADS / 32) + thread / 32), &all_told, lane, mine.x, mine.y);
    wait_for_cluster(&all_told);  // after it no block writes to another's shared memory, so blocks may end
    const float2 of_row = told_of_cluster<PAIRS>(told, PAIRS);
    const float shift = of_row.x, scale = 1.0f / of_row.y;

#pragma unroll
    for (int k = 0; k < CLUSTER_PIECES; k++) {
        forget(raw[k]);
        if (k * THREADS < left) to[k * THREADS] = softmax_of<Storage>(raw[k], shift, scale);
    }
    to += CLUSTER_PIECES * THREADS;
#pragma unroll 1
    for (int i = 0; i < left_shared; i += THREADS) to[i] = softmax_of<Storage>(shared[i], shift, scale);
}

// Before sm_90 the kernels of several blocks are empty, and no plan chooses them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define OF_CLUSTERS(blocks) __cluster_dims__(blocks, 1, 1)
#define WHERE_THERE_ARE_CLUSTERS(...) __VA_ARGS__
#else
#define OF_CLUSTERS(blocks)
#define WHERE_THERE_ARE_CLUSTERS(...)
#endif
#define SOFTMAX_SMALL_KERNEL(dtype, Storage, blocks, threads)                                                                              \
    IF_WANTED(softmax_##dtype##_cluster##blocks##_##threads##_v16,                                                                         \
    extern "C" __global__ void OF_CLUSTERS(blocks) __launch_bounds__(threads, 1024 / threads)                                              \
        softmax_##dtype##_cluster##blocks##_##threads##_v16(const Storage *__restrict__ x, Storage *__restrict__ out, long long rows,      \
                                                            long long columns) {                                                           \
        WHERE_THERE_ARE_CLUSTERS(softmax_small<Storage, blocks, threads>(x, out, static_cast<unsigned>(rows),                              \
                                                                         static_cast<unsigned>(columns)));                                 \
    })

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int STAGED_PIECES = 1;  // two would spill
#else
constexpr int STAGED_PIECES = 2;  // taken from shared memory at a time
#endif

// Most pairs that a block receives, its own included. Each warp sends its pair to each block, so that it need not wait for the other warps;
// if these are more than MOST_TOLD, which is slower, each block sends one.
constexpr int MOST_TOLD = 128;
template <int BLOCKS> __device__ __forceinline__ int tellers() {
    const int warps = blockDim.x / 32;
    return BLOCKS * warps <= MOST_TOLD ? warps : 1;
}
// The row's (shift, sum relative to it), in all threads of the cluster, from each thread's maximum and sum. own: 32 elements.
template <int BLOCKS>
__device__ __forceinline__ float2 over_cluster(float maximum, float sum, unsigned rank, float2 *own, float2 *told, Mbarrier *all_told) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, count = tellers<BLOCKS>();
    float2 mine = pair_over_warp(maximum, sum);
    if (count < warps) {
        if (lane == 0) own[warp] = mine;
        __syncthreads();
        mine = lane < warps ? own[lane] : make_float2(Maximum::neutral(), 0.0f);
        mine = pair_over_warp(mine.x, mine.y);
    }
    if (lane < BLOCKS && warp < count) send_to_block(told + (rank * count + warp), all_told, lane, mine.x, mine.y);
    wait_for_cluster(all_told);
    return told_of_cluster<MOST_TOLD>(told, BLOCKS * count);
}

// blockDim: a multiple of 32, at most 1024. This cluster's row is blockIdx.x / BLOCKS.
template <class Storage, int BLOCKS>
__device__ __forceinline__ void softmax_cluster(const Storage *x, Storage *out, unsigned rows, long long columns) {
    using P = Piece<Storage, 16>;
    using Raw = typename P::Raw;
    extern __shared__ __align__(128) uint4 dynamic_shared[];  // copies are slower if not aligned to cache lines
    __shared__ float maxima[32], sums[32];
    __shared__ float2 of_warps[32], told[MOST_TOLD];
    __shared__ Mbarrier all_told;
    if constexpr (BLOCKS > 1) mbarrier_of_cluster(&all_told, BLOCKS * tellers<BLOCKS>() * sizeof(float2));
    if constexpr (BLOCKS > 1) cluster_arrive();  // a block must have started before others write to its shared memory

    const unsigned rank = BLOCKS > 1 ? rank_in_cluster() : 0;
    const long long pieces = static_cast<unsigned long long>(columns) / P::COUNT;  // unsigned: the division is a shift
    const long long part = static_cast<unsigned long long>(pieces + BLOCKS * 8 - 1) / (BLOCKS * 8) * 8;  // of whole cache lines
    const long long first = min(rank * part, pieces);
    const int count = static_cast<int>(min(part, pieces - first));
    Raw *shared = reinterpret_cast<Raw *>(dynamic_shared);
    const int thread = threadIdx.x, threads = blockDim.x, in_registers = CLUSTER_PIECES * threads;
    const int kept = min(count, in_registers + static_cast<int>(dynamic_shared_bytes() / 16));
    const unsigned row = blockIdx.x / BLOCKS;
    const Raw *source = reinterpret_cast<const Raw *>(x) + first;
    Raw *target = reinterpret_cast<Raw *>(out) + first;
    Raw raw[CLUSTER_PIECES], staged[STAGED_PIECES];
    if (row < rows) {
        const Raw *from = source + row * pieces;
#pragma unroll
        for (int k = 0; k < CLUSTER_PIECES; k++) raw[k] = thread + k * threads < count ? from[thread + k * threads] : P::lowest();
        for (int i = in_registers + thread; i < kept; i += threads) copy_to_shared(shared + (i - in_registers), from + i);
    }
    // Also keeps the compiler from using the registers, and so from waiting for their loads, before all copies have been issued.
    if constexpr (BLOCKS > 1) cluster_wait();
    else asm volatile("" ::: "memory");
    // Runs once. As a loop instead of a branch nvcc gives it the instruction order that was measured.
    for (unsigned at = row; at < rows; at = rows) {
        const Raw *from = source + row * pieces;
        Raw *to = target + row * pieces;

        Seen<Storage> seen;
        seen.add(raw);
#pragma unroll 1  // compilers would unroll it four times for sm_100 and later, which spills
        for (int i = kept + thread; i < count; i += STAGED_PIECES * threads) {
#pragma unroll
            for (int k = 0; k < STAGED_PIECES; k++) staged[k] = i + k * threads < count ? from[i + k * threads] : P::lowest();
            seen.add(staged);
        }
        copies_done();
        for (int i = in_registers + thread; i < kept; i += STAGED_PIECES * threads) {
#pragma unroll
            for (int k = 0; k < STAGED_PIECES; k++) {
                staged[k] = i + k * threads < kept ? shared[i + k * threads - in_registers] : P::lowest();
            }
            seen.add(staged);
        }

        float shift, total;
        if constexpr (BLOCKS > 1) {  // after it no block writes to another's shared memory, so blocks may end
            const float2 of_row = over_cluster<BLOCKS>(seen.maximum, seen.sum, rank, of_warps, told, &all_told);
            shift = of_row.x, total = of_row.y;
        } else {
            const float highest = over_block<Maximum>(seen.maximum, maxima);
            shift = cluster_shift(highest), total = over_block<Sum>(seen.sum * rescale(seen.maximum, shift), sums);
        }
        const float scale = 1.0f / total;

#pragma unroll 1
        for (int i = kept + thread; i < count; i += STAGED_PIECES * threads) {
#pragma unroll
            for (int k = 0; k < STAGED_PIECES; k++) {
                if (i + k * threads < count) staged[k] = from[i + k * threads];
            }
#pragma unroll
            for (int k = 0; k < STAGED_PIECES; k++) {
                if (i + k * threads < count) to[i + k * threads] = softmax_of<Storage>(staged[k], shift, scale);
            }
        }
#pragma unroll
        for (int k = 0; k < CLUSTER_PIECES; k++) {
            const int i = thread + k * threads;
            forget(raw[k]);
            if (i < count) to[i] = softmax_of<Storage>(raw[k], shift, scale);
        }
        for (int i = in_registers + thread; i < kept; i += threads) to[i] = softmax_of<Storage>(shared[i - in_registers], shift, scale);
    }
}

#define SOFTMAX_LONG_ROW_KERNEL(dtype, Storage)                                                                                            \
    IF_WANTED(softmax_##dtype##_cluster1_v16,                                                                                              \
    extern "C" __global__ void __launch_bounds__(1024)                                                                                     \
        softmax_##dtype##_cluster1_v16(const Storage *__restrict__ x, Storage *__restrict__ out, long long rows, long long columns) {      \
        softmax_cluster<Storage, 1>(x, out, static_cast<unsigned>(rows), columns);                                         \
    })
#define SOFTMAX_CLUSTER_KERNEL(dtype, Storage, blocks)                                                                                     \
    IF_WANTED(softmax_##dtype##_cluster##blocks##_v16,                                                                                     \
    extern "C" __global__ void OF_CLUSTERS(blocks) __launch_bounds__(1024)                                                                 \
        softmax_##dtype##_cluster##blocks##_v16(const Storage *__restrict__ x, Storage *__restrict__ out, long long rows,                  \
                                                long long columns) {                                                                       \
        WHERE_THERE_ARE_CLUSTERS(softmax_cluster<Storage, blocks>(x, out, static_cast<unsigned>(rows), columns));          \
    })
