// C = A B on Hopper's tensor cores (sm_90a alone): 16-bit factors, row-major, accumulated in float32.
//
// One block an SM stays for the whole product and computes one 128 x BN tile of C after another. Its third warpgroup is the producer: one
// of its threads lets the copy engine fill a ring of STAGES slots, each 64 elements of K deep. The other two warpgroups are consumers:
// each multiplies 64 rows. A slot has two barriers, `full` (the copies have landed) and `empty` (all consumers have read it); the producer
// runs ahead into the next tile while the consumers store the last one.
//
// Clusters of two blocks that fetch B for each other gained nothing (docs/lab.md), so there are none.
#pragma once
#include "matmul_tile.cuh"
#include "matmul_wgmma_ptx.cuh"

template <class Storage_, int BN_, int STAGES_> struct WarpgroupTile {
    using Storage = Storage_;
    static constexpr int BM = 128, BN = BN_, BK = 64, STAGES = STAGES_, CONSUMERS = 2, THREADS = 128 * (CONSUMERS + 1);
    static constexpr int BOX = 64 * 128;  // bytes of 64 rows of 64 elements
    static constexpr int BYTES_A = BM / 64 * BOX, STAGE_BYTES = BYTES_A + BN / 64 * BOX;
    static constexpr int EMPTY_ARRIVALS = CONSUMERS * 4;  // one a warp

    // Shared memory: the ring, two boxes a consumer through which C is stored, the barriers. From the first multiple of 1024 on.
    SharedAddress ring;
    __device__ __forceinline__ WarpgroupTile() : ring((shared_base() + 1023) & ~1023u) {}
    __device__ __forceinline__ SharedAddress slot(int i) const { return ring + i * STAGE_BYTES; }
    __device__ __forceinline__ SharedAddress outbox(int consumer, int i) const { return slot(STAGES) + (2 * consumer + i) * BOX; }
    __device__ __forceinline__ SharedAddress full(int i) const { return outbox(CONSUMERS, 0) + 8 * i; }
    __device__ __forceinline__ SharedAddress empty(int i) const { return full(STAGES + i); }
};

// The slot in turn, and how often the ring has gone round, modulo 2.
template <int STAGES> struct Turn {
    int slot = 0;
    unsigned phase = 0;
    __device__ __forceinline__ void next() {
        if (++slot == STAGES) slot = 0, phase ^= 1;
    }
};

// This block's tiles, one after the other: visit(row, column) of C. GROUP: as in tile_position.
template <class Tile, unsigned GROUP = 16, class Visit> __device__ __forceinline__ void for_each_tile(long long m, long long n, Visit visit) {
    const unsigned tiles_m = static_cast<unsigned>((m + Tile::BM - 1) / Tile::BM);
    const unsigned count = tiles_m * static_cast<unsigned>((n + Tile::BN - 1) / Tile::BN);
    for (unsigned i = block_index(); i < count; i += gridDim.x) {
        const TilePosition at = tile_position<Tile::BM, Tile::BN, GROUP>(m, n, i);
        visit(static_cast<int>(at.m * Tile::BM), static_cast<int>(at.n * Tile::BN));
    }
}

template <class Tile>
__device__ __forceinline__ void produce(const Tile &tile, const TensorMap &a, const TensorMap &b, long long m, int k, long long n) {
    Turn<Tile::STAGES> turn;
    for_each_tile<Tile>(m, n, [&](int row, int column) {
        for (int depth = 0; depth < k; depth += Tile::BK) {
            const SharedAddress slot = tile.slot(turn.slot), full = tile.full(turn.slot);
            barrier_wait(tile.empty(turn.slot), turn.phase ^ 1);
            barrier_expect(full, Tile::STAGE_BYTES);
            box_load(slot, a, row, depth, full);
#pragma unroll
            for (int box = 0; box < Tile::BN / 64; box++)
                box_load(slot + Tile::BYTES_A + box * Tile::BOX, b, depth, column + 64 * box, full);
            turn.next();
        }
    });
}

// A consumer's 64 rows of C leave by boxes of 64 columns, two of which are under way at a time.
template <class Tile>
__device__ __forceinline__ void store_tile(const Tile &tile, const TensorMap &c, int row, int column, int consumer,
                                           const float (&sums)[Tile::BN / 2]) {
    using Storage = typename Tile::Storage;
    const int thread = thread_index() % 128, lane = thread % 32;
    // Lane l gives the address of a row of matrix l / 8 of store_matrices: rows 0-7 and 8-15 of 8 columns, then of the next 8.
    const int line = thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int box = 0; box < Tile::BN / 64; box++) {
        const SharedAddress outbox = tile.outbox(consumer, box % 2);
        if (thread == 0) {
            if (Tile::BN / 64 % 2 && box == 0)
                boxes_wait<0>();  // the last tile ended with this outbox, too
            else
                boxes_wait<1>();  // this outbox has been read, the other may still be
        }
        warpgroup_barrier(1 + consumer);
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            const float *from = sums + 32 * box + 8 * pair;
            const unsigned f[4] = {pack_pair(from[0], from[1], Storage{}), pack_pair(from[2], from[3], Storage{}),
                                   pack_pair(from[4], from[5], Storage{}), pack_pair(from[6], from[7], Storage{})};
            store_matrices(outbox + line * 128 + ((2 * pair + lane / 16) ^ (line & 7)) * 16, f);
        }
        publish_to_copies();
        warpgroup_barrier(1 + consumer);
        if (thread == 0) box_store(c, row + 64 * consumer, column + 64 * box, outbox);
    }
}

template <class Tile>
__device__ __forceinline__ void consume(const Tile &tile, const TensorMap &c, long long m, int k, long long n, int consumer) {
    const int lane = thread_index() % 32;
    const auto release = [&](int slot) {
        if (lane == 0) barrier_arrive(tile.empty(slot));
    };
    Turn<Tile::STAGES> turn;
    for_each_tile<Tile>(m, n, [&](int row, int column) {
        float sums[Tile::BN / 2];
        int last = 0;
        for (int depth = 0; depth < k; depth += Tile::BK) {
            barrier_wait(tile.full(turn.slot), turn.phase);
            const unsigned long long a = factor(tile.slot(turn.slot) + consumer * Tile::BOX, 1024, 0);
            const unsigned long long b = factor(tile.slot(turn.slot) + Tile::BYTES_A, 1024, Tile::BOX);
            products_begin();
#pragma unroll
            for (int i = 0; i < Tile::BK / 16; i++)  // 16 elements of K are 32 bytes of a row of A, 16 rows of B
                warpgroup_product(sums, further(a, 32 * i), further(b, 16 * 128 * i), depth + i > 0, typename Tile::Storage{});
            products_commit();
            products_wait<1>();  // the step before this one has been multiplied: its slot may be filled again
            if (depth > 0) release(last);
            last = turn.slot;
            turn.next();
        }
        products_wait<0>();
        release(last);
        store_tile(tile, c, row, column, consumer, sums);
    });
    if (thread_index() % 128 == 0) boxes_wait<0>();  // shared memory must outlive its stores
}

template <class Tile>
__device__ __forceinline__ void warpgroup_matmul(const TensorMap &a, const TensorMap &b, const TensorMap &c, long long m, long long k,
                                                 long long n) {
    const Tile tile;
    if (thread_index() == 0) {
        for (int i = 0; i < Tile::STAGES; i++) barrier_init(tile.full(i), 1), barrier_init(tile.empty(i), Tile::EMPTY_ARRIVALS);
        barriers_publish();
    }
    block_barrier();
    const int warpgroup = warpgroup_index();
    if (warpgroup == Tile::CONSUMERS) {
        registers_release<40>();
        if (thread_index() / 32 % 4 == 0 && elected()) produce(tile, a, b, m, static_cast<int>(k), n);
    } else {
        registers_claim<232>();
        consume(tile, c, m, static_cast<int>(k), n, warpgroup);
    }
}
