// A row over the blocks of a thread block cluster: read once, written once, up to 4 MiB a row.
//
// A block keeps its part of the row as it was read: the first CLUSTER_PIECES 16-byte pieces a thread in registers, what follows in dynamic
// shared memory, as much as the launch gave it. Only what fits in neither is read again, soon enough to find some of it in the L2. The
// blocks exchange one maximum and one sum each, through distributed shared memory. A cluster of one block needs none, nor sm_90.
#pragma once
#include "elements.cuh"
#include "softmax_cluster_ptx.cuh"

constexpr int CLUSTER_PIECES = 8;  // in registers: 32 of the 64 that 1024 threads, or twice 512, have each
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int STAGED_PIECES = 1;  // a second one does not fit into the registers as that compiler spends them
#else
constexpr int STAGED_PIECES = 2;  // taken from shared memory at a time
#endif

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

// ---- the kernel ---------------------------------------------------------------------------------------------------------------------

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

template <class Storage>
__device__ __forceinline__ typename Piece<Storage, 16>::Raw softmax_of(typename Piece<Storage, 16>::Raw raw, float shift, float scale) {
    using P = Piece<Storage, 16>;
    float values[P::COUNT];
    P::unpack(raw, values);
#pragma unroll
    for (int j = 0; j < P::COUNT; j++) values[j] = biased_exp(values[j], shift) * scale;
    return P::pack(values);
}

// The rows of a grid of fewer clusters than rows: each cluster takes the next row when it needs one, and loads it while it stores the
// last. counters[0]: rows taken; counters[1]: clusters that found none left. Both are 0 before a launch and after it.
__device__ __forceinline__ unsigned take_row(unsigned *counters) { return atomicAdd(counters, 1u); }
__device__ __forceinline__ void leave_queue(unsigned *counters, unsigned clusters) {
    __threadfence();
    if (atomicInc(counters + 1, clusters - 1) == clusters - 1) atomicExch(counters, 0u);
}

// Small blocks, five a multiprocessor, would all load, then all compute, then all store. So the first wave begins in phases: a cluster
// waits for as long as those before it need to load. `pieces`: a block's part, of which a multiprocessor loads about one a clock.
constexpr int APART_BLOCKS = 8, APART_THREADS = 192;
template <int BLOCKS> __device__ __forceinline__ void begin_apart(unsigned cluster, unsigned clusters, unsigned pieces) {
    constexpr unsigned PHASES = 1024 / APART_THREADS;
    const unsigned wave = multiprocessors() * PHASES / BLOCKS * 15 / 16;  // at once: not every multiprocessor finds a place in a cluster
    if (clusters >= 2 * wave && cluster < wave) wait_clocks(cluster * PHASES / wave * (pieces * 15 / 16));
}

// Any blockDim of whole warps, 1024 at most. Without a queue, row blockIdx.x / BLOCKS is this cluster's.
template <class Storage, int BLOCKS, bool QUEUED>
__device__ __forceinline__ void softmax_cluster(const Storage *x, Storage *out, unsigned rows, long long columns, unsigned *counters) {
    using P = Piece<Storage, 16>;
    using Raw = typename P::Raw;
    extern __shared__ uint4 dynamic_shared[];
    __shared__ float maxima[32], sums[32];
    __shared__ float2 of_blocks[2][BLOCKS];  // two sets, in turns: another block may be a row ahead
    __shared__ unsigned next_row[2];
    if constexpr (BLOCKS > 1) cluster_arrive_relaxed();  // that a block has begun must be known before its shared memory is written to

    const unsigned rank = BLOCKS > 1 ? rank_in_cluster() : 0;
    const long long pieces = columns / P::COUNT;
    const long long part = (pieces + BLOCKS * 8 - 1) / (BLOCKS * 8) * 8;  // of whole cache lines
    const long long first = min(rank * part, pieces);
    const int count = static_cast<int>(min(part, pieces - first));
    Raw *shared = reinterpret_cast<Raw *>(dynamic_shared);
    const int thread = threadIdx.x, threads = blockDim.x, lane = thread % 32, in_registers = CLUSTER_PIECES * threads;
    const int kept = min(count, in_registers + static_cast<int>(dynamic_shared_bytes() / 16));
    const bool leads = QUEUED && rank == 0 && thread < 32;  // a warp that takes rows for all
    const Raw *source = reinterpret_cast<const Raw *>(x) + first;
    Raw *target = reinterpret_cast<Raw *>(out) + first;

    unsigned row = blockIdx.x / BLOCKS;
    if constexpr (BLOCKS == APART_BLOCKS && !QUEUED) {
        if (threads == APART_THREADS) begin_apart<BLOCKS>(row, rows, static_cast<unsigned>(part));
    }
    if constexpr (QUEUED) {
        cluster_wait();
        if (leads) {
            const unsigned taken = __shfl_sync(0xffffffffu, lane == 0 ? take_row(counters) : 0, 0);
            if (lane < BLOCKS) store_in_block(next_row + 1, lane, taken);
        }
        cluster_arrive();
        cluster_wait();
        row = next_row[1];
    }
    Raw raw[CLUSTER_PIECES], staged[STAGED_PIECES];
    if (row < rows) {
        const Raw *from = source + row * pieces;
#pragma unroll
        for (int k = 0; k < CLUSTER_PIECES; k++) raw[k] = thread + k * threads < count ? from[thread + k * threads] : P::lowest();
        for (int i = in_registers + thread; i < kept; i += threads) copy_to_shared(shared + (i - in_registers), from + i);
    }
    // Also keeps the compiler from computing, and so from waiting for the registers, before all copies have been asked for.
    if constexpr (BLOCKS > 1 && !QUEUED) cluster_wait();
    else asm volatile("" ::: "memory");

    for (int turn = 0; row < rows; turn ^= 1) {
        const Raw *from = source + row * pieces;
        Raw *to = target + row * pieces;
        unsigned taken = rows;
        if (leads && lane == 0) taken = take_row(counters);  // not looked at before the exchange

        Seen<Storage> seen;
        seen.add(raw);
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

        const float highest = over_block<Maximum>(seen.maximum, maxima);
        float shift = cluster_shift(highest), total = over_block<Sum>(seen.sum * rescale(seen.maximum, shift), sums);
        unsigned next = rows;
        if constexpr (BLOCKS > 1) {
            if (thread < BLOCKS) {
                store_in_block(of_blocks[turn] + rank, thread, highest, total);
                if constexpr (!QUEUED) fence_cluster();  // by those who have written alone: a release by all is a fence in each warp
            }
            if (leads) {
                taken = __shfl_sync(0xffffffffu, taken, 0);
                if (lane < BLOCKS) store_in_block(next_row + turn, lane, taken);
            }
            if constexpr (QUEUED) cluster_arrive();
            else __syncwarp(), cluster_arrive_relaxed();
            cluster_wait();  // behind the last of these no block writes to another's shared memory: each may end when it likes
            const float2 one = lane < BLOCKS ? of_blocks[turn][lane] : make_float2(Maximum::neutral(), 0.0f);
            shift = cluster_shift(over_warp<Maximum>(one.x));
            total = over_warp<Sum>(one.y * rescale(one.x, shift));
            if constexpr (QUEUED) next = next_row[turn];
        }
        const float scale = 1.0f / total;

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
        const bool more = QUEUED && next < rows;
        from += (static_cast<long long>(next) - row) * pieces;  // the next row's, where there is one
#pragma unroll
        for (int k = 0; k < CLUSTER_PIECES; k++) {
            const int i = thread + k * threads;
            forget(raw[k]);
            if (i < count) {
                to[i] = softmax_of<Storage>(raw[k], shift, scale);
                if (more) raw[k] = from[i];
            }
        }
        for (int i = in_registers + thread; i < kept; i += threads) {
            to[i] = softmax_of<Storage>(shared[i - in_registers], shift, scale);
            if (more) copy_to_shared(shared + (i - in_registers), from + i);  // this thread alone reads and writes this place
        }
        row = next;
    }
    if (leads && lane == 0) leave_queue(counters, gridDim.x / BLOCKS);
}

// Older architectures get kernels of several blocks that do nothing, under the same names: no plan chooses them there.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define OF_CLUSTERS(blocks) __cluster_dims__(blocks, 1, 1)
#define WHERE_THERE_ARE_CLUSTERS(...) __VA_ARGS__
#else
#define OF_CLUSTERS(blocks)
#define WHERE_THERE_ARE_CLUSTERS(...)
#endif
#define SOFTMAX_LONG_ROW_KERNEL(dtype, Storage)                                                                                            \
    extern "C" __global__ void __launch_bounds__(1024)                                                                                     \
        softmax_##dtype##_cluster1_v16(const Storage *__restrict__ x, Storage *__restrict__ out, long long rows, long long columns) {      \
        softmax_cluster<Storage, 1, false>(x, out, static_cast<unsigned>(rows), columns, nullptr);                                         \
    }
#define SOFTMAX_CLUSTER_KERNEL(dtype, Storage, blocks)                                                                                     \
    extern "C" __global__ void OF_CLUSTERS(blocks) __launch_bounds__(1024)                                                                 \
        softmax_##dtype##_cluster##blocks##_v16(const Storage *__restrict__ x, Storage *__restrict__ out, long long rows,                  \
                                                long long columns) {                                                                       \
        WHERE_THERE_ARE_CLUSTERS(softmax_cluster<Storage, blocks, false>(x, out, static_cast<unsigned>(rows), columns, nullptr));          \
    }
#define SOFTMAX_QUEUE_KERNEL(dtype, Storage, blocks)                                                                                       \
    extern "C" __global__ void OF_CLUSTERS(blocks) __launch_bounds__(1024)                                                                 \
        softmax_##dtype##_queue##blocks##_v16(const Storage *__restrict__ x, Storage *__restrict__ out, long long rows, long long columns, \
                                              unsigned *counters) {                                                                        \
        WHERE_THERE_ARE_CLUSTERS(softmax_cluster<Storage, blocks, true>(x, out, static_cast<unsigned>(rows), columns, counters));          \
    }
