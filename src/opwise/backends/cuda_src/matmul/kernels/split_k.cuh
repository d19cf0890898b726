// C = A B on Hopper where a product has too few tiles for the multiprocessors: a tile's K is shared by the S blocks of a thread block
// cluster, whose sums meet in their shared memory. Nothing is written but C.
//
// A block multiplies K / S of its tile as wgmma.cuh does: a producer, here one warp, fills a ring of slots, and consumer warpgroups
// of 64 rows each multiply. Every unit of the tile's sums has an owner among the blocks, each as many. A warp keeps those of its sums that
// its own block owns in registers and pushes the others into their owners' inboxes, each of which lies beside the ring, so that nobody is
// asked whether it is ready: a block's only barrier with the others says, early, that its mbarriers are there. The warp that holds a unit's
// own sums adds the parts of ranks r + 1, r + 2, ... to them, so a sum is the same in every run, and stores it.
//
// One tile a cluster, S from 1 (no cluster) to 16, 64 rows or a multiple, BN any multiple of 16. A product of 64 rows wastes no half of a
// tile here. A slot is BK of K deep, 64 or a multiple: with 128 the barriers of narrow tiles, and the waits at them, are half as many.
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
    // Sums travel by units of 16 rows and 16 columns, 1 KiB: a unit is what a warp holds in 8 registers a thread.
    static constexpr int UNITS_A_ROW = BN / 16, OWNED = WARPS * UNITS_A_ROW / S, INBOX = (S - 1) * OWNED * 1024;
    static_assert(BM % 64 == 0 && BN % 16 == 0 && BK % 64 == 0 && S >= 1 && S <= 16);
    static_assert(WARPS * UNITS_A_ROW % S == 0, "blocks own equally many");
    static_assert(!B_T || BN % BOX_COLUMNS == 0, "B takes as many bytes either way");

    SharedAddress ring;
    __device__ __forceinline__ SplitKTile() : ring((shared_base() + 1023) & ~1023u) {}
    __device__ __forceinline__ SharedAddress slot(int i) const { return ring + i * STAGE_BYTES; }
    // Whose a warp's i-th unit is. Of S that follow one another each has another owner, and all the same place in its inbox.
    __device__ __forceinline__ static int owner(unsigned warp, unsigned i) { return (warp * (UNITS_A_ROW % S) + i) % S; }
    // For the part of a unit from the block `further` ranks on from its owner. Half a unit, columns 0-7 or 8-15, is 16 bytes a lane.
    __device__ __forceinline__ SharedAddress inbox(int further, unsigned warp, unsigned i) const {
        return slot(STAGES) + ((further - 1) * OWNED + (warp * UNITS_A_ROW + i) / S) * 1024 + thread_index() % 32 * 16;
    }
    __device__ __forceinline__ SharedAddress full(int i) const { return slot(STAGES) + INBOX + 8 * i; }
    __device__ __forceinline__ SharedAddress empty(int i) const { return full(STAGES + i); }
    // All parts are in the inbox that this block's warp waits for.
    __device__ __forceinline__ SharedAddress arrived(int warp) const { return full(2 * STAGES + warp); }
};

// Stores a warp's unit of C at (row, column), of which what lies outside is left out; n is a multiple of 8. A lane holds of each half
// columns 2t, 2t + 1 of rows g and g + 8; a 4x4 transpose among the 4 lanes of a g gives each 8 columns of one row: whole sectors.
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

// Bytes a step by which A's boxes are less than their places, where a tile's are CUT: as low as an A that is lower than the tile, since the
// zeros of rows that it has not take longer than rows do. Sums of what lies there are of rows that are not stored.
template <class Tile> __device__ __forceinline__ int missing_bytes(long long m) {
    return Tile::CUT && m < Tile::BM ? Tile::BOXES_A * 128 * (Tile::BM - static_cast<int>(m)) : 0;
}

// Steps first .. last of K, of the tile at (row, column), whose boxes have `missing` bytes less. By one thread.
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

// sums = the products of `steps` steps. release(slot): it has been read. The last slot is not released.
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

// A tile's sums to C, where they are whole. By the consumers.
template <class Tile>
__device__ __forceinline__ void store_sums(typename Tile::Storage *c, long long m, long long n, int row, int column,
                                           const float (&sums)[Tile::BN / 2]) {
    const int warp = thread_index() / 32;
#pragma unroll
    for (int i = 0; i < Tile::UNITS_A_ROW; i++) store_unit(c, m, n, row + warp * 16, column + i * 16, sums + 8 * i);
}

// This block's sums to the units' owners, the others' to its own units, and these to C. By the consumers, S > 1.
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
    for (int j = 0; j < Tile::UNITS_A_ROW; j += Tile::S) {  // of S units in a row this block owns one at most
        float own[8];  // chosen into one place first: a copy of what follows for each unit is more code than a launch has time to fetch
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
    const int steps = static_cast<int>((k + Tile::BK - 1) / Tile::BK);  // 2^24 at most, see matmul/__init__.py: no overflow below
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
        // Parts may come before this: the phase ends with this one arrival and all bytes, in whichever order.
        if (thread_index() % 32 == 0) barrier_expect(tile.arrived(warp), (Tile::S - 1) * owned * 1024);
    }
    float sums[Tile::BN / 2];
    consume_part(tile, warpgroup, last - first, sums, [&](int slot) {
        if (thread_index() % 32 == 0) barrier_arrive(tile.empty(slot));
    });
    if constexpr (Tile::S == 1) {
        store_sums<Tile>(c, m, n, row, column, sums);
    } else {
        cluster_wait();  // all blocks have begun, long since
        push_and_store(tile, c, m, n, row, column, rank, sums);
    }
}
