// C = A B by wgmma (sm_90a only): 16-bit factors, accumulated in float32.
//
// Persistent: one block per SM computes one BM x BN tile of C after another. Its last warpgroup is the producer: one thread issues the TMA
// copies to a ring of STAGES slots of 64 elements of K. The other two or three warpgroups are consumers of 64 or 128 rows each. A slot has
// two mbarriers, `full` (the copies are complete) and `empty` (all consumers have read it). The producer loads the next tile while the
// consumers store the last one.
//
// A cluster of two blocks computes tiles side by side: each loads half of the rows of A for both, and a slot may be refilled once both have
// read it.
#pragma once
#include "matmul/common/wgmma.cuh"
#include "matmul/kernels/tile.cuh"

// CLUSTER: blocks, one or two. READERS: consumers that read a slot: both, all three, or (ping-pong) one of two. B_T: B is the transpose of
// a row-major matrix and is loaded as A: a box of BN rows of 128 bytes.
template <int CLUSTER_, class Storage_, int BM_, int BN_, int STAGES_, int OUTBOXES_, int READERS_, bool B_T_ = false>
struct WarpgroupTile {
    using Storage = Storage_;
    static constexpr int BM = BM_, BN = BN_, BK = 64, STAGES = STAGES_, OUTBOXES = OUTBOXES_, CONSUMERS = READERS_ > 2 ? READERS_ : 2;
    static constexpr int CLUSTER = CLUSTER_;
    static constexpr bool B_T = B_T_;
    static constexpr int THREADS = 128 * (CONSUMERS + 1), UNITS = BM / 64 / READERS_;  // of 64 rows, that a consumer multiplies
    static constexpr unsigned GROUP = BM > 128 ? 8 : 16;  // tile rows that are walked together: some 1500 to 2000 of C
    static constexpr int BOX = 64 * 128;                  // bytes of 64 rows of 64 elements
    // Boxes of B and of C have 64 columns, or 32, where 64 do not divide BN.
    static constexpr int COLUMNS = BN % 64 ? 32 : 64, ROW = 2 * COLUMNS, BOX_B = 64 * ROW, BOXES_B = BN / COLUMNS;
    static constexpr int BYTES_A = BM / 64 * BOX, STAGE_BYTES = BYTES_A + BOXES_B * BOX_B;
    static constexpr int EMPTY_ARRIVALS = CLUSTER * READERS_ * 4;  // one a warp
    static constexpr int ROWS_FETCHED = BM / CLUSTER;              // of A, by a block
    static_assert(CLUSTER <= 2 && ROWS_FETCHED * 128 % 1024 == 0, "the swizzle is by address");
    static constexpr int SUMS = BN / 2;                            // of a thread, in a unit
    static constexpr int CLAIMED = CONSUMERS > 2 ? 160 : 232, KEPT = CONSUMERS > 2 ? 32 : 40;  // registers of a consumer, of the producer

    // Shared memory, from the first multiple of 1024 on: the ring, the consumers' boxes for stores of C, the mbarriers.
    SharedAddress ring;
    __device__ __forceinline__ WarpgroupTile() : ring((shared_base() + 1023) & ~1023u) {}
    __device__ __forceinline__ SharedAddress slot(int i) const { return ring + i * STAGE_BYTES; }
    __device__ __forceinline__ SharedAddress outbox(int consumer, int i) const { return slot(STAGES) + (OUTBOXES * consumer + i) * BOX_B; }
    __device__ __forceinline__ SharedAddress full(int i) const { return outbox(CONSUMERS, 0) + 8 * i; }
    __device__ __forceinline__ SharedAddress empty(int i) const { return full(STAGES + i); }
};

// The current slot of a ring, and the parity of its round.
template <int STAGES> struct PipelineState {
    int slot = 0;
    unsigned phase = 0;
    __device__ __forceinline__ void next() {
        if (++slot == STAGES) slot = 0, phase ^= 1;
    }
    __device__ __forceinline__ void skip(int count) {
        const unsigned at = slot + count;
        slot = at % STAGES, phase ^= at / STAGES & 1;
    }
};

// A cluster computes CLUSTER tiles at once: their number, and this block's corner of the i-th, which may be outside of C. A cluster takes
// every clusters()-th.
template <class Tile> __device__ __forceinline__ unsigned clusters() { return gridDim.x / Tile::CLUSTER; }
template <class Tile> __device__ __forceinline__ unsigned tiles_of(long long m, long long n) {
    constexpr int WIDTH = Tile::CLUSTER * Tile::BN;
    return static_cast<unsigned>((m + Tile::BM - 1) / Tile::BM) * static_cast<unsigned>((n + WIDTH - 1) / WIDTH);
}
struct Corner {
    int row, column;
};
template <class Tile> __device__ __forceinline__ Corner tile_corner(long long m, long long n, unsigned i) {
    const TilePosition at = tile_position<Tile::BM, Tile::CLUSTER * Tile::BN, Tile::GROUP>(m, n, i);
    return {static_cast<int>(at.m * Tile::BM), static_cast<int>((at.n * Tile::CLUSTER + block_index() % Tile::CLUSTER) * Tile::BN)};
}

// Calls visit(row, column) for each of this block's tiles of C.
template <class Tile, class Visit> __device__ __forceinline__ void for_each_tile(long long m, long long n, Visit visit) {
    const unsigned count = tiles_of<Tile>(m, n);
    for (unsigned i = block_index() / Tile::CLUSTER; i < count; i += clusters<Tile>()) {
        const Corner at = tile_corner<Tile>(m, n, i);
        visit(at.row, at.column);
    }
}

template <class Tile>
__device__ __forceinline__ void produce(const Tile &tile, const TensorMap &a, const TensorMap &b, long long m, int k, long long n) {
    const int first = static_cast<int>(block_index() % Tile::CLUSTER) * Tile::ROWS_FETCHED;
    PipelineState<Tile::STAGES> turn;
    for_each_tile<Tile>(m, n, [&](int row, int column) {
        for (int depth = 0; depth < k; depth += Tile::BK) {
            const SharedAddress slot = tile.slot(turn.slot), full = tile.full(turn.slot);
            barrier_wait(tile.empty(turn.slot), turn.phase ^ 1);
            barrier_expect(full, Tile::STAGE_BYTES);  // the other block's half may have landed already
            if constexpr (Tile::CLUSTER == 2)
                box_load_both(slot + first * 128, a, row + first, depth, full);
            else
                box_load(slot, a, row, depth, full);
            if constexpr (Tile::B_T) {
                box_load(slot + Tile::BYTES_A, b, column, depth, full);
            } else {
#pragma unroll
                for (int box = 0; box < Tile::BOXES_B; box++)
                    box_load(slot + Tile::BYTES_A + box * Tile::BOX_B, b, depth, column + Tile::COLUMNS * box, full);
            }
            turn.next();
        }
    });
    if constexpr (Tile::CLUSTER > 1) {  // this block must not end before the other has released its slots here
        for (int i = 0; i < Tile::STAGES; i++, turn.next()) barrier_wait(tile.empty(turn.slot), turn.phase ^ 1);
    }
}

// A warp has read a slot.
template <class Tile> __device__ __forceinline__ void release(const Tile &tile, int slot) {
    const int lane = thread_index() % 32;
    if constexpr (Tile::CLUSTER == 1) {
        if (lane == 0) barrier_arrive(tile.empty(slot));
    } else if (lane < Tile::CLUSTER) {
        barrier_arrive_there(of_block(tile.empty(slot), lane));
    }
}

// Multiplies a consumer's part of a tile, whose rows of A are at byte `first` of a slot. Returns the last slot, which is still being read.
template <class Tile>
__device__ __forceinline__ int multiply(const Tile &tile, PipelineState<Tile::STAGES> &turn, int k, int first,
                                        float (&sums)[Tile::UNITS][Tile::SUMS]) {
    int last = 0;
    for (int depth = 0; depth < k; depth += Tile::BK) {
        barrier_wait(tile.full(turn.slot), turn.phase);
        const SharedAddress slot = tile.slot(turn.slot);
        const unsigned long long a = factor(slot + first, 1024, 0);
        const unsigned long long b = factor_b<Tile::B_T, Tile::ROW>(slot + Tile::BYTES_A, Tile::BOX_B);
        products_begin();
#pragma unroll
        for (int i = 0; i < Tile::BK / 16; i++) {  // 16 elements of K are 32 bytes of a row of A, 16 rows of B
            const int add = depth + i > 0;
#pragma unroll
            for (int unit = 0; unit < Tile::UNITS; unit++)
                multiply_by<Tile::B_T>(sums[unit], further(a, unit * Tile::BOX + 32 * i),
                                       further(b, Tile::B_T ? 32 * i : 16 * Tile::ROW * i), add, typename Tile::Storage{});
        }
        products_commit();
        products_wait<1>();  // the step before this one has been multiplied: its slot may be filled again
        if (depth > 0) release(tile, last);
        last = turn.slot;
        turn.next();
    }
    return last;
}

// Stores a consumer's `unit`-th 64 rows of a tile by boxes, of which OUTBOXES are in flight at a time.
template <class Tile>
__device__ __forceinline__ void store_rows(const Tile &tile, const TensorMap &c, int row, int column, int consumer,
                                           const float (&sums)[Tile::BN / 2], int unit) {
    using Storage = typename Tile::Storage;
    const int thread = thread_index() % 128, lane = thread % 32;
    // Lane l gives the address of a row of matrix l / 8 of store_matrices: rows 0-7 and 8-15 of 8 columns, then of the next 8.
    const int line = thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int box = 0; box < Tile::BOXES_B; box++) {
        const int number = unit * Tile::BOXES_B + box;
        const SharedAddress outbox = tile.outbox(consumer, number % Tile::OUTBOXES);
        if (thread == 0) {
            if (Tile::UNITS * Tile::BOXES_B % Tile::OUTBOXES && number == 0)
                boxes_wait<0>();  // the last rows ended with this outbox, too
            else
                boxes_wait<Tile::OUTBOXES - 1>();  // this outbox has been read, the other may still be
        }
        warpgroup_barrier(1 + consumer);
#pragma unroll
        for (int pair = 0; pair < Tile::COLUMNS / 16; pair++) {
            const float *from = sums + Tile::COLUMNS / 2 * box + 8 * pair;
            const unsigned f[4] = {pack_pair(from[0], from[1], Storage{}), pack_pair(from[2], from[3], Storage{}),
                                   pack_pair(from[4], from[5], Storage{}), pack_pair(from[6], from[7], Storage{})};
            store_matrices(outbox + ByRow<Tile::ROW>::at(line, 32 * pair + lane / 16 * 16), f);
        }
        publish_to_copies();
        warpgroup_barrier(1 + consumer);
        if (thread == 0) box_store(c, row, column + Tile::COLUMNS * box, outbox);
    }
}

// All consumers share a tile, 64 rows each, or 128.
template <class Tile>
__device__ __forceinline__ void consume(const Tile &tile, const TensorMap &c, long long m, int k, long long n, int consumer) {
    PipelineState<Tile::STAGES> turn;
    for_each_tile<Tile>(m, n, [&](int row, int column) {
        float sums[Tile::UNITS][Tile::BN / 2];
        const int first = consumer * Tile::UNITS;  // of the tile's units
        const int last = multiply(tile, turn, k, first * Tile::BOX, sums);
        products_wait<0>();
        release(tile, last);
#pragma unroll
        for (int unit = 0; unit < Tile::UNITS; unit++)
            store_rows(tile, c, row + 64 * (first + unit), column, consumer, sums[unit], unit);
    });
}

// Runs the block's producer, and consume(tile, consumer) in its consumer warpgroups.
template <class Tile, class Consume>
__device__ __forceinline__ void by_warpgroups(const TensorMap &a, const TensorMap &b, long long m, long long k, long long n,
                                              Consume consume) {
    const Tile tile;
    if (thread_index() == 0) {
        for (int i = 0; i < Tile::STAGES; i++) barrier_init(tile.full(i), 1), barrier_init(tile.empty(i), Tile::EMPTY_ARRIVALS);
        barriers_publish();
    }
    block_barrier();
    if constexpr (Tile::CLUSTER > 1) cluster_arrive(), cluster_wait();  // nobody fetches for a block whose barriers are not there
    const int warpgroup = warpgroup_index();
    if (warpgroup == Tile::CONSUMERS) {
        registers_release<Tile::KEPT>();
        if (thread_index() / 32 % 4 == 0 && elected()) produce(tile, a, b, m, static_cast<int>(k), n);
    } else {
        registers_claim<Tile::CLAIMED>();
        consume(tile, warpgroup);
        if (thread_index() % 128 == 0) boxes_wait<0>();  // shared memory must outlive its stores
    }
}

template <class Tile>
__device__ __forceinline__ void warpgroup_matmul(const TensorMap &a, const TensorMap &b, const TensorMap &c, long long m, long long k,
                                                 long long n) {
    by_warpgroups<Tile>(a, b, m, k, n, [&](const Tile &tile, int consumer) { consume(tile, c, m, static_cast<int>(k), n, consumer); });
}
