// softmax over long rows (by default above 2 MiB, choice.STREAM_ABOVE) by all SMs at once: groups of blocks take rows in turn, with several
// rows in flight. sm_90.
//
// softmax_<dtype>_stream_v16  a group of blocks per row: reads once, writes once; x, out and rows 16-byte aligned
//
// The grid is (blocks of a group, groups): a cooperative launch, one block per SM. Group r % groups has row r. A block's part of a row is
// divided evenly among its STREAM_WARPS computing warps. Each of them has STREAM_SLOTS slots in shared memory for its part, which bulk
// copies (TMA) fill. A warp waits only for its own copies and issues the next ones itself, so that a block's warps synchronise only for the
// sums:
//
//     turn i   row i: this warp's maximum and sum of exponentials, passed to the teller
//     turn i   row j = i - STREAM_LAG: waits for the row's maximum and sum, computes and stores; refills the slot for row j + STREAM_SLOTS
//     teller   an extra warp: reduces the warps' pairs of a row to one pair and writes it to global memory
//     learner  an extra warp: reduces the pairs of all blocks of the group to the row's maximum and 1 / sum, for all warps
//
// The exchange of a row's sums may take STREAM_LAG turns, in which warps compute other rows and the memory serves their loads and stores.
//
// Results are stored from registers instead of by TMA: a slot is free once it has been read, and shared memory is not written twice.
#include "common/cluster_async.cuh"
#include "softmax/pieces.cuh"

constexpr int STREAM_WARPS = 16;  // that compute
constexpr int STREAM_PIECES = 4;  // most 16-byte pieces of a row per lane
constexpr int STREAM_SLOTS = 7;   // rows in shared memory
constexpr int STREAM_LAG = 5;     // turns from a row's first part to its second
// Rows that a warp requests at the start, if there are many: more would delay the first sums. Each turn then requests one more.
constexpr int STREAM_AHEAD = 2;
// Rows whose pairs are stored, a ring. How far apart warps can be: a warp in turn i has finished turn i - 1, so its learner has read row
// i - 1 - LAG, so all blocks of the group have written that row's pairs, so all their warps have finished turn i - 2 - LAG, and all
// learners have read row i - 2 - 2 LAG. The pair of row i overwrites that of row i - ROWS: not needed any more if ROWS >= 2 LAG + 2.
// For the arrays and barriers in shared memory, which only their own block uses, LAG + 1 would suffice.
constexpr int STREAM_ROWS = 12;
static_assert(STREAM_ROWS >= 2 * STREAM_LAG + 2 && STREAM_LAG < STREAM_SLOTS && STREAM_WARPS <= 30, "see above");
constexpr int STREAM_THREADS = 32 * (STREAM_WARPS + 2);
constexpr int STREAM_BATCH = 4;  // pairs that a lane loads at once

// ---- pairs in global memory ---------------------------------------------------------------------------------------------------------

// A pair and its tag are one 16-byte word, which is written and read atomically: a reader that sees the tag sees the pair, without a fence.
// The tag is the launch's number and how often the entry has been written in this launch, both from 1 on. Entries are 0 at the first launch
// and need not be cleared after a launch, since the next launch has another number.
struct alignas(16) Told {
    float maximum, sum;
    unsigned times, launch;
};
__device__ __forceinline__ void tell(Told *to, float maximum, float sum, unsigned times, unsigned launch) {
    const unsigned long long pair = __float_as_uint(maximum) | static_cast<unsigned long long>(__float_as_uint(sum)) << 32;
    const unsigned long long tagged = times | static_cast<unsigned long long>(launch) << 32;
    asm volatile("{ .reg .b128 word; mov.b128 word, {%1, %2}; st.relaxed.gpu.global.b128 [%0], word; }" ::"l"(to), "l"(pair), "l"(tagged)
                 : "memory");
}
__device__ __forceinline__ Told heard(const Told *from) {
    unsigned long long pair, tagged;
    asm volatile("{ .reg .b128 word; ld.relaxed.gpu.global.b128 word, [%2]; mov.b128 {%0, %1}, word; }" : "=l"(pair), "=l"(tagged) : "l"(from)
                 : "memory");
    return {__uint_as_float(static_cast<unsigned>(pair)), __uint_as_float(static_cast<unsigned>(pair >> 32)), static_cast<unsigned>(tagged),
            static_cast<unsigned>(tagged >> 32)};
}

// Entries of a group: STREAM_ROWS rows of one pair per block, and one for the number of the last launch. Every learner reads that number
// and adds 1 before its block writes any pair, so block 0 may store the new number once all blocks have written.
__device__ __forceinline__ unsigned places_of_group(unsigned blocks) { return STREAM_ROWS * blocks + 1; }

__device__ __forceinline__ void learn(const Told *places, unsigned blocks, unsigned turn, unsigned launch, float2 *to) {
    const unsigned lane = threadIdx.x % 32, times = turn / STREAM_ROWS + 1;
    const Told *of_row = places + turn % STREAM_ROWS * blocks;
    float maximum = Maximum::neutral(), sum = 0.0f;
    for (unsigned first = lane; first < blocks; first += 32 * STREAM_BATCH) {
        Told told[STREAM_BATCH];
        bool all;
        do {
            all = true;
#pragma unroll
            for (unsigned k = 0; k < STREAM_BATCH; k++) {
                told[k] = {Maximum::neutral(), 0.0f, times, launch};
                if (first + 32 * k < blocks) told[k] = heard(of_row + first + 32 * k);
            }
#pragma unroll
            for (unsigned k = 0; k < STREAM_BATCH; k++) all = all && told[k].times == times && told[k].launch == launch;
        } while (!all);
        float highest = maximum;
#pragma unroll
        for (int k = 0; k < STREAM_BATCH; k++) highest = fmaxf(highest, told[k].maximum);
        const float shift = cluster_shift(highest);
        sum *= rescale(maximum, shift);
#pragma unroll
        for (int k = 0; k < STREAM_BATCH; k++) sum += told[k].sum * rescale(told[k].maximum, shift);
        maximum = highest;
    }
    __syncwarp();
    const float2 row = pair_over_warp(maximum, sum);
    if (lane == 0) *to = make_float2(cluster_shift(row.x), 1.0f / row.y);
}

__device__ __forceinline__ void teller_and_learner_meet() { asm volatile("bar.sync 1, 64;" ::: "memory"); }

// ---- the kernel ---------------------------------------------------------------------------------------------------------------------

// columns: at most gridDim.x * STREAM_WARPS * 32 * STREAM_PIECES pieces. Dynamic shared memory: STREAM_SLOTS times a block's part of these.
// places: places_of_group(gridDim.x) * gridDim.y entries, 0 at the first launch, otherwise as the last launch of the same grid left them.
template <class Storage>
__device__ __forceinline__ void softmax_stream(const Storage *x, Storage *out, unsigned rows, long long columns, Told *places) {
    using P = Piece<Storage, 16>;
    using Raw = typename P::Raw;
    extern __shared__ __align__(128) unsigned char places_of_rows[];  // copies are slower if not aligned to cache lines
    __shared__ float2 of_warps[STREAM_ROWS][STREAM_WARPS], of_rows[STREAM_ROWS];  // maximum and sum; maximum and 1 / sum
    __shared__ unsigned number;  // of this launch
    __shared__ Mbarrier full[STREAM_WARPS][STREAM_SLOTS], told[STREAM_ROWS], known[STREAM_ROWS];

    const unsigned blocks = gridDim.x, groups = gridDim.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned turns = rows > blockIdx.y ? (rows - blockIdx.y - 1) / groups + 1 : 0;
    places += blockIdx.y * places_of_group(blocks);
    // A row here is short enough for 32 bits; the whole matrix need not be.
    const unsigned pieces = static_cast<unsigned>(columns / P::COUNT), parts = blocks * STREAM_WARPS;
    const unsigned part = (pieces + parts * 8 - 1) / (parts * 8) * 8;  // of whole cache lines
    const unsigned begin = min((blockIdx.x * STREAM_WARPS + warp) * part, pieces), count = min(part, pieces - begin);
    const unsigned step = groups * pieces;  // pieces from a row of this group to its next
    Raw *const shared = reinterpret_cast<Raw *>(places_of_rows) + warp * (STREAM_SLOTS * STREAM_PIECES * 32);
    const long long first = static_cast<long long>(blockIdx.y) * pieces + begin;
    const Raw *from = reinterpret_cast<const Raw *>(x) + first;
    Raw *to = reinterpret_cast<Raw *>(out) + first;

    const auto ask = [&](unsigned slot) {  // requests the next row's part
        if (lane == 0 && count > 0) copy_in_bulk(shared + slot * (STREAM_PIECES * 32), from, count * 16, full[warp] + slot);
        from += step;
    };
    const auto look = [&](unsigned slot, Raw(&raw)[STREAM_PIECES]) {
#pragma unroll
        for (unsigned k = 0; k < STREAM_PIECES; k++) {
            raw[k] = k * 32 + lane < count ? shared[(slot * STREAM_PIECES + k) * 32 + lane] : P::lowest();
        }
    };
    const unsigned ahead = turns < 4 * STREAM_SLOTS ? STREAM_SLOTS : STREAM_AHEAD;
    if (warp < STREAM_WARPS) {  // only this warp uses its copies, so it requests them before the block's barrier
        if (lane < STREAM_SLOTS) mbarrier_init(full[warp] + lane, 1);
        mbarriers_visible();
        __syncwarp();
#pragma unroll 1
        for (unsigned slot = 0; slot < ahead && slot < turns; slot++) ask(slot);
    } else if (const unsigned place = threadIdx.x - STREAM_WARPS * 32; place < STREAM_ROWS) {
        mbarrier_init(told + place, STREAM_WARPS);
        mbarrier_init(known + place, 1);
    }
    __syncthreads();

    if (warp == STREAM_WARPS) {  // the teller
        teller_and_learner_meet();
        const unsigned launch = number;
#pragma unroll 1
        for (unsigned turn = 0; turn < turns; turn++) {
            const unsigned place = turn % STREAM_ROWS;
            mbarrier_wait(told + place, turn / STREAM_ROWS % 2);
            const float2 one = lane < STREAM_WARPS ? of_warps[place][lane] : make_float2(Maximum::neutral(), 0.0f);
            const float2 all = pair_over_warp(one.x, one.y);
            if (lane == 0) tell(places + (place * blocks + blockIdx.x), all.x, all.y, turn / STREAM_ROWS + 1, launch);
        }
        return;
    }
    if (warp > STREAM_WARPS) {  // the learner
        const unsigned launch = heard(places + STREAM_ROWS * blocks).launch + 1;
        if (lane == 0) number = launch;
        teller_and_learner_meet();
        for (unsigned turn = 0; turn < turns; turn++) {
            learn(places, blocks, turn, launch, of_rows + turn % STREAM_ROWS);
            if (lane == 0) mbarrier_arrive(known + turn % STREAM_ROWS);
        }
        if (lane == 0 && blockIdx.x == 0) tell(places + STREAM_ROWS * blocks, 0.0f, 0.0f, 0, launch);
        return;
    }

    unsigned slot = 0, phase = 0, last = 0;  // slot, last: the slots of this turn's two rows
    for (unsigned turn = 0; turn < turns + STREAM_LAG; turn++) {
        Raw raw[STREAM_PIECES];
        if (turn < turns) {
            if (count > 0) mbarrier_wait(full[warp] + slot, phase);
            if (turn + ahead < STREAM_SLOTS) ask(turn + ahead);
            look(slot, raw);
            Seen<Storage> seen;
            seen.add(raw);
            const float2 pair = pair_over_warp(seen.maximum, seen.sum);
            if (lane == 0) {
                of_warps[turn % STREAM_ROWS][warp] = pair;
                mbarrier_arrive(told + turn % STREAM_ROWS);
            }
            if (++slot == STREAM_SLOTS) slot = 0, phase ^= 1;
        }
        if (turn >= STREAM_LAG) {
            const unsigned row = turn - STREAM_LAG;
            mbarrier_wait(known + row % STREAM_ROWS, row / STREAM_ROWS % 2);
            const float2 known_of = of_rows[row % STREAM_ROWS];
            look(last, raw);
#pragma unroll
            for (unsigned k = 0; k < STREAM_PIECES; k++) raw[k] = softmax_of<Storage>(raw[k], known_of.x, known_of.y);
#pragma unroll
            for (unsigned k = 0; k < STREAM_PIECES; k++) {
                if (k * 32 + lane < count) to[k * 32 + lane] = raw[k];
            }
            to += step;
            __syncwarp();  // all lanes have read the slot, since their stores needed the data
            if (row + STREAM_SLOTS < turns) ask(last);
            if (++last == STREAM_SLOTS) last = 0;
        }
    }
}

#define SOFTMAX_STREAM_KERNEL(dtype, Storage, size)                                                                                        \
    IF_WANTED(softmax_##dtype##_stream_v16,                                                                                                \
    extern "C" __global__ void __launch_bounds__(STREAM_THREADS, 1)                                                                        \
        softmax_##dtype##_stream_v16(const Storage *__restrict__ x, Storage *__restrict__ out, long long rows, long long columns,          \
                                     Told *places) {                                                                                       \
        softmax_stream<Storage>(x, out, static_cast<unsigned>(rows), columns, places);                                                     \
    })
FOR_EACH_DTYPE(SOFTMAX_STREAM_KERNEL)
