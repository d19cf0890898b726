// C = A B by wgmma (sm_90a) for products with fewer tiles than SMs: split-K over the S blocks of a cluster, which reduce their sums through
// distributed shared memory.
//
// A block multiplies its K / S as in wgmma.cuh: a producer, here one warp, fills a ring, and consumer warpgroups of 64 rows multiply. The
// units of the tile's sums are divided evenly among the blocks. A warp keeps the units that its block owns in registers and pushes the
// others to their owners' inboxes. An inbox is not part of the ring, so it is always free: the only cluster barrier, early on, says that a
// block's mbarriers are initialized. The owner's warp adds the parts of ranks r + 1, r + 2, ... in this order and stores the unit.
//
// One tile per cluster, S from 1 (no cluster) to 16, BM a multiple of 64, BN of 16. A slot has BK of K, a multiple of 64; 128 halves the
// barriers of narrow tiles.
#pragma once
#include "matmul/kernels/wgmma.cuh"

template <class Storage_, int BM_, int BN_, int BK_, int STAGES_, int S_, int BLOCKS_A_SM_, unsigned GROUP_, bool B_T_ = false>
struct SplitKTile {
    using Storage = Storage_;
    static constexpr bool CUT = true, B_T = B_T_;
    static constexpr int BM = BM_, BN = BN_, BK = BK_, STAGES = STAGES_, S = S_, BLOCKS_A_SM = BLOCKS_A_SM_;
    static constexpr unsigned GROUP = GROUP_;  // as in tile_position
    static constexpr int CONSUMERS = BM / 64, WARPS = 4 * CONSUMERS, THREADS = 32 * (WARPS + 1);
    // Boxes have rows of 128 bytes: BM rows of A by 64 of K, BK rows of K by 64 columns of B, or BN columns of B by 64 of K.
    static constexpr int BOX_COLUMNS = 64, ROW_B = 2 * BOX_COLUMNS;
    static constexpr int BOX_A = BM * 128, BOXES_A = BK / 64, BOX_B = BK * ROW_B, BOXES_B = (BN + BOX_COLUMNS - 1) / BOX_COLUMNS;
    static constexpr int BYTES_A = BOXES_A * BOX_A, STAGE_BYTES = BYTES_A + BOXES_B * BOX_B;
    static constexpr int EMPTY_ARRIVALS = WARPS;
    // A unit of the sums has 16 rows and 16 columns, 1 KiB: 8 registers per thread of a warp.
    static constexpr int UNITS_A_ROW = BN / 16, OWNED = WARPS * UNITS_A_ROW / S, INBOX = (S - 1) * OWNED * 1024;
    static_assert(BM % 64 == 0 && BN % 16 == 0 && BK % 64 == 0 && S >= 1 && S <= 16);
    static_assert(WARPS * UNITS_A_ROW % S == 0, "blocks own equally many");
    static_assert(!B_T || BN % BOX_COLUMNS == 0, "B takes as many bytes either way");

    SharedAddress ring;
    __device__ __forceinline__ SplitKTile() : ring((shared_base() + 1023) & ~1023u) {}
    __device__ __forceinline__ SharedAddress slot(int i) const { return ring + i * STAGE_BYTES; }
    // The owner of a warp's i-th unit. S consecutive units have different owners and the same place in their inboxes.
    __device__ __forceinline__ static int owner(unsigned warp, unsigned i) { return (warp * (UNITS_A_ROW % S) + i) % S; }
    // The address of the part of a unit from the block `further` ranks after its owner. Columns 0-7 or 8-15 of it are 16 bytes per lane.
    __device__ __forceinline__ SharedAddress inbox(int further, unsigned warp, unsigned i) const {
        return slot(STAGES) + ((further - 1) * OWNED + (warp * UNITS_A_ROW + i) / S) * 1024 + thread_index() % 32 * 16;
    }
    __device__ __forceinline__ SharedAddress full(int i) const { return slot(STAGES) + INBOX + 8 * i; }
    __device__ __forceinline__ SharedAddress empty(int i) const { return full(STAGES + i); }
    // The mbarrier whose phase ends when all parts for this block's warp are in the inbox.
    __device__ __forceinline__ SharedAddress arrived(int warp) const { return full(2 * STAGES + warp); }
};

// Stores the part inside C of a warp's unit at (row, column); n is a multiple of 8. A lane holds columns 2t, 2t + 1 of rows g and g + 8 of
// each half; a 4x4 transpose among the 4 lanes of g gives each 8 columns of a row, so that stores are whole sectors for a pair of lanes.
template <class Storage>
__device__ __forceinline__ void store_unit(Storage *c, long long m, long long n, int row, int column, const float *sums) {
    const int lane = thread_index() % 32, t = lane % 4;
    unsigned v[4] = {pack_pair(sums[0], sums[1], Storage{}), pack_pair(sums[2], sums[3], Storage{}),
                     pack_pair(sums[4], sums[5], Storage{}), pack_pair(sums[6], sums[7], Storage{})};
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2) {
#pragma unroll
        for (int low = 0; low < 4; low++) {
            if (low & mask) continue;
            const unsigned got = exchange(t & mask ? v[low] : v[low + mask], mask);
            v[low] = t & mask ? got : v[low];
            v[low + mask] = t & mask ? v[low + mask] : got;
        }
    }
    row += lane / 4 + 8 * (t & 1), column += 8 * (t / 2);
    if (row < m && column < n) *reinterpret_cast<Words4 *>(c + row * n + column) = Words4{v[0], v[1], v[2], v[3]};
}

// Bytes per step by which A's boxes are smaller than their slots, if A has fewer rows than the tile and its boxes are CUT to them: loading
// zeros beyond A is slower than loading rows. The unwritten bytes only affect rows that are not stored.
template <class Tile> __device__ __forceinline__ int missing_bytes(long long m) {
    return Tile::CUT && m < Tile::BM ? Tile::BOXES_A * 128 * (Tile::BM - static_cast<int>(m)) : 0;
}

// By one thread: loads steps first .. last of K of the tile at (row, column), each `missing` bytes smaller than a slot.
template <class Tile>
__device__ __forceinline__ void produce_part(const Tile &tile, const TensorMap &a, const TensorMap &b, int row, int column, int first,
                                             int last, int missing) {
    PipelineState<Tile::STAGES> turn;
    for (int step = first; step < last; step++) {
        const SharedAddress slot = tile.slot(turn.slot), full = tile.full(turn.slot);
        barrier_wait(tile.empty(turn.slot), turn.phase ^ 1);
        barrier_expect(full, Tile::STAGE_BYTES - missing);
#pragma unroll
        for (int box = 0; box < Tile::BOXES_A; box++) box_load(slot + box * Tile::BOX_A, a, row, step * Tile::BK + 64 * box, full);
        if constexpr (Tile::B_T) {
#pragma unroll
            for (int box = 0; box < Tile::BOXES_A; box++)
                box_load(slot + Tile::BYTES_A + box * Tile::BN * 128, b, column, step * Tile::BK + 64 * box, full);
        } else {
#pragma unroll
            for (int box = 0; box < Tile::BOXES_B; box++)
                box_load(slot + Tile::BYTES_A + box * Tile::BOX_B, b, step * Tile::BK, column + Tile::BOX_COLUMNS * box, full);
        }
        turn.next();
    }
}

// sums = the products of `steps` steps. Calls release(slot) after a slot has been read, but not for the last one.
template <class Tile, class Release>
__device__ __forceinline__ void consume_part(const Tile &tile, int consumer, int steps, float (&sums)[Tile::BN / 2], Release release) {
#pragma unroll
    for (float &each : sums) each = 0;
    PipelineState<Tile::STAGES> turn;
    int last = 0;
    for (int step = 0; step < steps; step++) {
        barrier_wait(tile.full(turn.slot), turn.phase);
        const unsigned long long a = factor(tile.slot(turn.slot) + consumer * 64 * 128, 1024, 0);
        const unsigned long long b = factor_b<Tile::B_T, Tile::ROW_B>(tile.slot(turn.slot) + Tile::BYTES_A, Tile::BOX_B);
        products_begin();
#pragma unroll
        for (int i = 0; i < Tile::BK / 16; i++)
            multiply_by<Tile::B_T>(sums, further(a, i / 4 * Tile::BOX_A + i % 4 * 32),
                                   further(b, Tile::B_T ? i / 4 * Tile::BN * 128 + i % 4 * 32 : 16 * Tile::ROW_B * i), true,
                                   typename Tile::Storage{});
        products_commit();
        products_wait<1>();
        if (step > 0) release(last);
        last = turn.slot;
        turn.next();
    }
    products_wait<0>();
}

// By the consumers, S = 1: stores the tile's sums to C.
template <class Tile>
__device__ __forceinline__ void store_sums(typename Tile::Storage *c, long long m, long long n, int row, int column,
                                           const float (&sums)[Tile::BN / 2]) {
    const int warp = thread_index() / 32;
#pragma unroll
    for (int i = 0; i < Tile::UNITS_A_ROW; i++) store_unit(c, m, n, row + warp * 16, column + i * 16, sums + 8 * i);
}

// By the consumers, S > 1: pushes sums to the units' owners, adds the others' to this block's units, and stores these to C.
template <class Tile>
__device__ __forceinline__ void push_and_store(const Tile &tile, typename Tile::Storage *c, long long m, long long n, int row, int column,
                                               int rank, const float (&sums)[Tile::BN / 2]) {
    const unsigned warp = warp_index();
#pragma unroll
    for (int i = 0; i < Tile::UNITS_A_ROW; i++) {
        const int to = Tile::owner(warp, i);
        if (to == rank) continue;
        const SharedAddress there = of_block(tile.inbox(rank > to ? rank - to : rank - to + Tile::S, warp, i), to);
        const SharedAddress barrier = of_block(tile.arrived(warp), to);
        push_16(there, sums + 8 * i, barrier);
        push_16(there + 512, sums + 8 * i + 4, barrier);
    }
    barrier_wait_cluster(tile.arrived(warp), 0);
#pragma unroll
    for (int j = 0; j < Tile::UNITS_A_ROW; j += Tile::S) {  // of S consecutive units this block owns at most one
        float own[8];  // selected first: unrolling the code below for each unit would exceed the instruction cache
        int mine = -1;
#pragma unroll
        for (int i = j; i < j + Tile::S && i < Tile::UNITS_A_ROW; i++) {
            if (Tile::owner(warp, i) != rank) continue;
            mine = i;
#pragma unroll
            for (int at = 0; at < 8; at++) own[at] = sums[8 * i + at];
        }
        if (Tile::UNITS_A_ROW % Tile::S != 0 && mine < 0) continue;
#pragma unroll
        for (int further = 1; further < Tile::S; further++) {
            float part[8];
            const SharedAddress from = tile.inbox(further, warp, Tile::UNITS_A_ROW % Tile::S == 0 ? j : mine);  // one place for all of S
            load_shared_16(part, from);
            load_shared_16(part + 4, from + 512);
#pragma unroll
            for (int at = 0; at < 8; at++) own[at] = sum(own[at], part[at]);
        }
        store_unit(c, m, n, row + static_cast<int>(warp) * 16, column + mine * 16, own);
    }
}

template <class Tile>
__device__ __forceinline__ void split_k_matmul(const TensorMap &a, const TensorMap &b, typename Tile::Storage *c, long long m, long long k,
                                             long long n) {
    const Tile tile;
    if (thread_index() == 0) {
        for (int i = 0; i < Tile::STAGES; i++) barrier_init(tile.full(i), 1), barrier_init(tile.empty(i), Tile::EMPTY_ARRIVALS);
        for (int i = 0; Tile::S > 1 && i < Tile::WARPS; i++) barrier_init(tile.arrived(i), 1);
        barriers_publish();
    }
    block_barrier();
    if constexpr (Tile::S > 1) cluster_arrive();
    const int rank = Tile::S > 1 ? static_cast<int>(rank_in_cluster()) : 0;
    const TilePosition at = tile_position<Tile::BM, Tile::BN, Tile::GROUP>(m, n, block_index() / Tile::S);
    const int row = static_cast<int>(at.m * Tile::BM), column = static_cast<int>(at.n * Tile::BN);
    const int steps = static_cast<int>((k + Tile::BK - 1) / Tile::BK);  // at most 2^24 (TMA_LIMIT of configurations.py): no overflow below
    const int first = steps * rank / Tile::S, last = steps * (rank + 1) / Tile::S;
    const int warpgroup = warpgroup_index();
    if (warpgroup == Tile::CONSUMERS) {  // the producer's one warp; a cluster's barrier waits for it too
        if (elected()) produce_part(tile, a, b, row, column, first, last, missing_bytes<Tile>(m));
        __syncwarp();
        if constexpr (Tile::S > 1) cluster_wait();
        return;
    }
    if constexpr (Tile::S > 1) {
        const int warp = warp_index();
        int owned = 0;
#pragma unroll
        for (int i = 0; i < Tile::UNITS_A_ROW; i++) owned += Tile::owner(warp, i) == rank;
        // Parts may arrive earlier: the phase ends with this arrival and all bytes, in any order.
        if (thread_index() % 32 == 0) barrier_expect(tile.arrived(warp), (Tile::S - 1) * owned * 1024);
    }
    float sums[Tile::BN / 2];
    consume_part(tile, warpgroup, last - first, sums, [&](int slot) {
        if (thread_index() % 32 == 0) barrier_arrive(tile.empty(slot));
    });
    if constexpr (Tile::S == 1) {
        store_sums<Tile>(c, m, n, row, column, sums);
    } else {
        cluster_wait();  // all blocks have initialized their mbarriers
        push_and_store(tile, c, m, n, row, column, rank, sums);
    }
}
