// A row over the blocks of a cluster, of 256 threads at most each, four to ten a multiprocessor: for rows many enough to fill it. As
// cluster.cuh, but that a block's threads are known to the compiler and its part always fits registers and shared memory.
//
// A block lives for some 20 us and does nothing but wait for memory in most of them, so what counts are the instructions before its first
// load, between its loads, and from the last exponential to the first store.
#pragma once
#include "common/cluster_async.cuh"
#include "softmax/pieces.cuh"

constexpr int SMALL_PIECES = 8;  // of 16 bytes, of a thread in registers: as CLUSTER_PIECES
constexpr int COPIED_AT_ONCE = 7;

// So many blocks would all load, then all compute, then all store. So the first wave begins in phases: a cluster waits for as long as
// those before it need to load. `pieces`: a block's part, of which a multiprocessor loads about one a clock.
// PHASES: blocks a multiprocessor. APART: sixteenths of a clock a piece.
template <int BLOCKS, unsigned PHASES, unsigned APART = 15>
__device__ __forceinline__ void begin_apart(unsigned cluster, unsigned clusters, unsigned pieces) {
    constexpr unsigned SHARE = BLOCKS <= 2 ? 16 : BLOCKS <= 8 ? 15 : 14;  // sixteenths of the multiprocessors find a place in a cluster
    const unsigned wave = multiprocessors() * PHASES / BLOCKS * SHARE / 16;  // at once
    if (cluster < wave && clusters >= 2 * wave) wait_clocks(cluster * PHASES / wave * (pieces * APART / 16));
}

// The maxima and sums that a block was told of, `count` of MOST at most -> the row's shift and sum relative to it, for all lanes of a warp.
// All are read at once: a loop over as many as there are would wait for one after the other.
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

// What a block has of row blockIdx.x / BLOCKS, the row of its cluster: of `pieces` of 16 bytes those from `first` on, `part` or fewer.
template <class Storage, int BLOCKS> struct PartOfRow {
    unsigned rank, row, pieces, part, first;

    __device__ __forceinline__ explicit PartOfRow(unsigned columns) {
        rank = BLOCKS > 1 ? rank_in_cluster() : 0, row = blockIdx.x / BLOCKS, pieces = columns / Piece<Storage, 16>::COUNT;
        part = (pieces + BLOCKS * 8 - 1) / (BLOCKS * 8) * 8, first = min(rank * part, pieces);  // of whole cache lines
    }
    // From this thread's first piece on, which is piece `start` of x.
    __device__ __forceinline__ int left(int thread) const { return static_cast<int>(min(part, pieces - first)) - thread; }
    __device__ __forceinline__ unsigned long long start(int thread) const {
        return row * static_cast<unsigned long long>(pieces) + first + thread;
    }
    // Of a cluster: behind its barrier, for which none waits here, all blocks' bells may be sent `bytes` each.
    template <unsigned PHASES, unsigned APART = 15> __device__ __forceinline__ void begin(Mbarrier *bell, unsigned bytes, unsigned rows) const {
        mbarrier_of_cluster(bell, bytes);
        cluster_arrive();  // that a block has begun must be known before its shared memory is written to
        begin_apart<BLOCKS, PHASES, APART>(row, rows, part);
    }
};

// Row blockIdx.x / BLOCKS is this cluster's. Dynamic shared memory: all that registers do not hold of a block's part.
template <class Storage, int BLOCKS, int THREADS>
__device__ __forceinline__ void softmax_small(const Storage *x, Storage *out, unsigned rows, unsigned columns) {
    using P = Piece<Storage, 16>;
    using Raw = typename P::Raw;
    constexpr int PAIRS = BLOCKS * THREADS / 32;
    extern __shared__ __align__(128) uint4 dynamic_shared[];  // off a cache line's bounds, copies take longer
    __shared__ float2 told[PAIRS];  // a pair of each warp of the cluster, from each warp to each block: none waits for its own block
    __shared__ Mbarrier all_told;

    const PartOfRow<Storage, BLOCKS> share(columns);
    const int thread = threadIdx.x, lane = thread % 32, left = share.left(thread);
    const unsigned long long start = share.start(thread);
    const Raw *from = reinterpret_cast<const Raw *>(x) + start;
    Raw *to = reinterpret_cast<Raw *>(out) + start, *shared = reinterpret_cast<Raw *>(dynamic_shared) + thread;
    share.template begin<1024 / THREADS, BLOCKS == 16 ? 13 : 15>(&all_told, PAIRS * sizeof(float2), rows);  // 13: measured at 256 x 524288

    Raw raw[SMALL_PIECES], staged[2];
    const int left_shared = left - SMALL_PIECES * THREADS;
    if (left_shared > -THREADS) {  // all of this thread's registers have a piece
#pragma unroll
        for (int k = 0; k < SMALL_PIECES; k++) raw[k] = from[k * THREADS];
        from += SMALL_PIECES * THREADS;
#pragma unroll 1
        for (int i = 0; i < left_shared; i += COPIED_AT_ONCE * THREADS) {
#pragma unroll
            for (int k = 0; k < COPIED_AT_ONCE; k++) {
                if (i + k * THREADS < left_shared) copy_to_shared(shared + i + k * THREADS, from + i + k * THREADS);
            }
        }
    } else {
#pragma unroll
        for (int k = 0; k < SMALL_PIECES; k++) raw[k] = k * THREADS < left ? from[k * THREADS] : P::lowest();
    }
    // The compiler moves no exponential above the branches' end: there loads would be waited for before all copies have been asked for.
    cluster_wait();

    Seen<Storage> seen;
    seen.add(raw);
    if (left_shared > 0) {  // a branch again: what registers hold is computed with before
        copies_done();
#pragma unroll 1
        for (int i = 0; i < left_shared; i += 2 * THREADS) {
            staged[0] = shared[i];
            staged[1] = i + THREADS < left_shared ? shared[i + THREADS] : P::lowest();
            seen.add(staged);
        }
    }

    const float2 mine = pair_over_warp(seen.maximum, seen.sum);
    if (lane < BLOCKS) send_to_block(told + (share.rank * (THREADS / 32) + thread / 32), &all_told, lane, mine.x, mine.y);
    wait_for_cluster(&all_told);  // behind it no block writes to another's shared memory: each may end when it likes
    const float2 of_row = told_of_cluster<PAIRS>(told, PAIRS);
    const float shift = of_row.x, scale = 1.0f / of_row.y;

#pragma unroll
    for (int k = 0; k < SMALL_PIECES; k++) {
        forget(raw[k]);
        if (k * THREADS < left) to[k * THREADS] = softmax_of<Storage>(raw[k], shift, scale);
    }
    to += SMALL_PIECES * THREADS;
#pragma unroll 1
    for (int i = 0; i < left_shared; i += THREADS) to[i] = softmax_of<Storage>(shared[i], shift, scale);
}

// Older architectures get kernels of several blocks that do nothing, under the same names: no plan chooses them there.
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
