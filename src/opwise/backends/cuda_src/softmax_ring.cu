// softmax over long rows, many of them, by clusters of blocks that go from row to row: the memory is kept busy across a row's end. sm_90.
//
// softmax_float32_ring16_v16  16 blocks a row of at most 4 MiB: reads once, writes once; x, out and rows 16-byte aligned
//
// Only for rows that leave a multiprocessor one block: where there are two or more, one reads while another exchanges.
//
// A thread has RING_SHARED 16-byte pieces of a row in shared memory and RING_REGISTERS behind them in registers. Shared memory has room
// for RING_AHEAD more, which belong to the row after: those loads are under way while the blocks exchange maxima and sums, when
// nothing else is. A thread alone reads and writes its pieces' places, so no barrier guards them.
// The exchange needs no fence: each block's pair is sent with the bytes that a barrier in the receiver's shared memory counts.
#include "softmax_cluster.cuh"

constexpr int RING_BLOCKS = 16, RING_THREADS = 1024;  // the blocks of a cluster, a block's threads
constexpr int RING_SHARED = 8, RING_REGISTERS = 8, RING_AHEAD = 6;
static_assert(RING_AHEAD <= RING_SHARED && RING_AHEAD % 2 == 0 && RING_SHARED % 2 == 0, "taken from shared memory in pairs");
constexpr int RING_PLACES = RING_SHARED + RING_AHEAD;

__device__ __forceinline__ void copies_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the `LATER` groups begun last have arrived.
template <int LATER> __device__ __forceinline__ void copies_but() { asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory"); }

// Rows for a cluster, asked for where this stands: a plain atomicAdd sinks to where its result is used.
__device__ __forceinline__ unsigned take_rows(unsigned *counters, unsigned count) {
    unsigned first;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(first) : "l"(counters), "r"(count) : "memory");
    return first;
}

// ---- a barrier that counts bytes sent by other blocks (sm_90) -----------------------------------------------------------------------

using Bell = unsigned long long;
__device__ __forceinline__ void bell_init(Bell *bell) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(bell)) : "memory");
}
__device__ __forceinline__ void bells_visible() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void bell_expect(Bell *bell, unsigned bytes) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 state, [%0], %1; }"
                 ::"r"(shared_address(bell)), "r"(bytes) : "memory");
}
// To the places that `to` and `bell` have in block `rank`.
__device__ __forceinline__ void send(float2 *to, Bell *bell, unsigned rank, float first, float second) {
    asm volatile("{ .reg .b32 there, rung; mapa.shared::cluster.u32 there, %0, %2; mapa.shared::cluster.u32 rung, %1, %2;"
                 " st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%3, %4}, [rung]; }"
                 ::"r"(shared_address(to)), "r"(shared_address(bell)), "r"(rank), "f"(first), "f"(second) : "memory");
}
__device__ __forceinline__ void send(unsigned *to, Bell *bell, unsigned rank, unsigned value) {
    asm volatile("{ .reg .b32 there, rung; mapa.shared::cluster.u32 there, %0, %2; mapa.shared::cluster.u32 rung, %1, %2;"
                 " st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [there], %3, [rung]; }"
                 ::"r"(shared_address(to)), "r"(shared_address(bell)), "r"(rank), "r"(value) : "memory");
}
__device__ __forceinline__ void bell_wait(Bell *bell, unsigned parity) {
    asm volatile("{ .reg .pred rung; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 rung, [%0], %1;"
                 " @!rung bra again; }" ::"r"(shared_address(bell)), "r"(parity) : "memory");
}

// ---- the kernel ---------------------------------------------------------------------------------------------------------------------

// columns: a multiple of 4, at most RING_BLOCKS * RING_THREADS * (RING_SHARED + RING_REGISTERS) pieces. Dynamic shared memory:
// RING_PLACES * RING_THREADS pieces. counters as in softmax_cluster.cuh: clusters take rows from them, since how many run at once is not
// known beforehand.
extern "C" __global__ void __cluster_dims__(RING_BLOCKS, 1, 1) __launch_bounds__(RING_THREADS, 1)
    softmax_float32_ring16_v16(const float *__restrict__ x, float *__restrict__ out, long long all_rows, long long columns,
                               unsigned *counters) {
    using P = Piece<float, 16>;
    using Raw = typename P::Raw;
    extern __shared__ uint4 dynamic_shared[];
    __shared__ float2 of_warps[2][32], of_blocks[2][RING_BLOCKS];  // two sets, in turns: another warp or block may be a row ahead
    __shared__ unsigned rows_ahead[2];                             // the row after the next one
    __shared__ unsigned first_row;
    __shared__ Bell bells[2];
    constexpr unsigned MESSAGE = RING_BLOCKS * sizeof(float2) + sizeof(unsigned);

    const unsigned rows = static_cast<unsigned>(all_rows), rank = rank_in_cluster();
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const bool leads = rank == 0 && thread == 0;
    unsigned taken = 0;
    if (leads) taken = take_rows(counters, 2);
    if (thread == 0) {
        for (int set = 0; set < 2; set++) {
            bell_init(bells + set);
            bell_expect(bells + set, MESSAGE);
        }
        bells_visible();
    }
    cluster_arrive();
    cluster_wait();
    if (rank == 0 && warp == 0) {
        taken = __shfl_sync(0xffffffffu, taken, 0);
        if (lane < RING_BLOCKS) store_in_block(&first_row, lane, taken);
    }
    cluster_arrive();
    cluster_wait();
    unsigned row = first_row, next = row + 1;

    // A row here is short enough for 32 bits; the whole matrix need not be.
    const unsigned pieces = static_cast<unsigned>(columns / P::COUNT);
    const unsigned part = (pieces + RING_BLOCKS * 8 - 1) / (RING_BLOCKS * 8) * 8;  // of whole cache lines
    const unsigned begin = min(rank * part, pieces) + thread;                      // of this thread's first piece
    const int count = static_cast<int>(min(rank * part + part, pieces) - begin);  // piece k is there if k * RING_THREADS < count

    // Of shared memory's pieces of all rows, one behind the other, piece i lies in place i % RING_PLACES.
    const auto place = [=](int at) {
        return reinterpret_cast<Raw *>(dynamic_shared) + ((at >= RING_PLACES ? at - RING_PLACES : at) * RING_THREADS + thread);
    };
    const auto in = [=](unsigned row) { return reinterpret_cast<const Raw *>(x) + (static_cast<long long>(row) * pieces + begin); };
    const auto ask = [=](unsigned row, int k, Raw *to) {  // one group of copies, empty behind the last row
        if (row < rows && k * RING_THREADS < count) copy_to_shared(to, in(row) + k * RING_THREADS);
        copies_group();
    };
    const auto look = [=](int base, int k) { return k * RING_THREADS < count ? *place(base + k) : P::lowest(); };
    const auto load = [=](unsigned row, int k, Raw &raw) {
        const int at = (RING_SHARED + k) * RING_THREADS;
        raw = row < rows && at < count ? in(row)[at] : P::lowest();
    };

    Raw raw[RING_REGISTERS];
    if (row < rows) {
#pragma unroll
        for (int k = 0; k < RING_SHARED; k++) ask(row, k, place(k));
#pragma unroll
        for (int k = 0; k < RING_REGISTERS; k++) load(row, k, raw[k]);
#pragma unroll
        for (int k = 0; k < RING_AHEAD; k++) ask(next, k, place(RING_SHARED + k));
    }
    int base = 0;  // the place of this row's first piece
    for (unsigned turn = 0; row < rows; turn++) {
        const unsigned set = turn % 2;
        if (leads) taken = take_rows(counters, 1);
        Seen<float> seen;
        copies_but<RING_SHARED>();  // those that were begun before the last row was stored
#pragma unroll
        for (int k = 0; k < RING_AHEAD; k += 2) {
            const Raw two[2] = {look(base, k), look(base, k + 1)};
            seen.add(two);
        }
        copies_but<RING_AHEAD>();
#pragma unroll
        for (int k = RING_AHEAD; k < RING_SHARED; k += 2) {
            const Raw two[2] = {look(base, k), look(base, k + 1)};
            seen.add(two);
        }
        seen.add(raw);

        const float of_warp = over_warp<Maximum>(seen.maximum);
        const float sum_of_warp = over_warp<Sum>(seen.sum * rescale(seen.maximum, cluster_shift(of_warp)));
        if (lane == 0) of_warps[set][warp] = make_float2(of_warp, sum_of_warp);
        __syncthreads();
        float2 one = lane < RING_THREADS / 32 ? of_warps[set][lane] : make_float2(Maximum::neutral(), 0.0f);
        float highest = over_warp<Maximum>(one.x), shift = cluster_shift(highest);
        float total = over_warp<Sum>(one.y * rescale(one.x, shift));
        if (warp == 0) {
            if (rank == 0) {
                taken = __shfl_sync(0xffffffffu, taken, 0);
                if (lane < RING_BLOCKS) send(rows_ahead + set, bells + set, lane, taken);
            }
            if (lane < RING_BLOCKS) send(of_blocks[set] + rank, bells + set, lane, highest, total);
        }
        bell_wait(bells + set, turn / 2 % 2);
        if (thread == 0) bell_expect(bells + set, MESSAGE);  // for the row after the next one
        one = lane < RING_BLOCKS ? of_blocks[set][lane] : make_float2(Maximum::neutral(), 0.0f);
        shift = cluster_shift(over_warp<Maximum>(one.x));
        total = over_warp<Sum>(one.y * rescale(one.x, shift));
        const unsigned after = rows_ahead[set];
        const float scale = 1.0f / total;

        // What the next row needs first is asked for first.
        Raw *to = reinterpret_cast<Raw *>(out) + (static_cast<long long>(row) * pieces + begin);
#pragma unroll
        for (int k = 0; k < RING_SHARED - RING_AHEAD; k++) {
            if (k * RING_THREADS < count) to[k * RING_THREADS] = softmax_of<float>(*place(base + k), shift, scale);
            ask(next, RING_AHEAD + k, place(base + k));
        }
#pragma unroll
        for (int k = 0; k < RING_REGISTERS; k++) {
            const int at = (RING_SHARED + k) * RING_THREADS;
            forget(raw[k]);
            if (at < count) to[at] = softmax_of<float>(raw[k], shift, scale);
            load(next, k, raw[k]);
        }
#pragma unroll
        for (int k = RING_SHARED - RING_AHEAD; k < RING_SHARED; k++) {
            if (k * RING_THREADS < count) to[k * RING_THREADS] = softmax_of<float>(*place(base + k), shift, scale);
            ask(after, k - (RING_SHARED - RING_AHEAD), place(base + k));
        }
        base = base + RING_SHARED >= RING_PLACES ? base + RING_SHARED - RING_PLACES : base + RING_SHARED;
        row = next, next = after;
    }
    copies_but<0>();
    if (leads) leave_queue(counters, gridDim.x / RING_BLOCKS);
}
