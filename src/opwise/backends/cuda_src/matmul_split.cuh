// C = A B on Hopper where a product has too few tiles for the multiprocessors: a tile's K is shared by the S blocks of a thread block
// cluster, whose sums meet in their shared memory. Nothing is written but C.
//
// A block multiplies K / S of its tile as matmul_wgmma.cuh does: a producer, here one warp, fills a ring of slots, and consumer warpgroups
// of 64 rows each multiply. Then each lays its sums into its own ring, which nobody needs any more; behind a barrier of the cluster
// every block adds up one S-th of the tile, read from all S, and stores it. Block r adds the parts in the order r, r + 1, ..., so that the
// blocks do not all read from one at a time, and a sum is the same in every run.
//
// One tile a cluster, S from 1 (no cluster, sums stay in registers) to 16, 64 rows or a multiple, BN any multiple of 16. A product of 64
// rows wastes no half of a tile here, and BN is free to be what fills the last wave. A slot is BK of K deep, 64 or a multiple: with 128 the
// barriers of narrow tiles, and the waits at them, are half as many.
#pragma once
#include "matmul_wgmma.cuh"

template <class Storage_, int BM_, int BN_, int BK_, int STAGES_, int S_, int BLOCKS_A_SM_> struct SplitTile {
    using Storage = Storage_;
    static constexpr int BM = BM_, BN = BN_, BK = BK_, STAGES = STAGES_, S = S_, BLOCKS_A_SM = BLOCKS_A_SM_;
    static constexpr int CONSUMERS = BM / 64, WARPS = 4 * CONSUMERS, THREADS = 32 * (WARPS + 1);
    // Boxes have rows of 128 bytes: BM rows of A by 64 of K, BK rows of K by 64 columns of B.
    static constexpr int BOX_A = BM * 128, BOXES_A = BK / 64, BOX_B = BK * 128, BOXES_B = (BN + 63) / 64;
    static constexpr int BYTES_A = BOXES_A * BOX_A, STAGE_BYTES = BYTES_A + BOXES_B * BOX_B;
    static constexpr int EMPTY_ARRIVALS = WARPS;
    // Sums travel by units of 16 rows and 16 columns, 1 KiB: a unit is what a warp holds in 8 registers a thread.
    static constexpr int UNITS_A_ROW = BN / 16, UNITS = WARPS * UNITS_A_ROW;
    static_assert(BM % 64 == 0 && BN % 16 == 0 && BK % 64 == 0 && S >= 1 && S <= 16);
    static_assert(S == 1 || UNITS * 1024 <= STAGES * STAGE_BYTES, "the ring holds the sums");

    SharedAddress ring;
    __device__ __forceinline__ SplitTile() : ring((shared_base() + 1023) & ~1023u) {}
    __device__ __forceinline__ SharedAddress slot(int i) const { return ring + i * STAGE_BYTES; }
    __device__ __forceinline__ SharedAddress full(int i) const { return slot(STAGES) + 8 * i; }
    __device__ __forceinline__ SharedAddress empty(int i) const { return full(STAGES + i); }
    // Half a unit is 16 bytes a lane: columns 0-7 or 8-15 of the accumulator as wgmma leaves it.
    __device__ __forceinline__ SharedAddress sums(int unit, int half) const {
        return ring + unit * 1024 + half * 512 + thread_index() % 32 * 16;
    }
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

// Steps first .. last of K, of the tile at (row, column). By one thread.
template <class Tile>
__device__ __forceinline__ void produce_part(const Tile &tile, const TensorMap &a, const TensorMap &b, int row, int column, int first,
                                             int last) {
    Turn<Tile::STAGES> turn;
    for (int step = first; step < last; step++) {
        const SharedAddress slot = tile.slot(turn.slot), full = tile.full(turn.slot);
        barrier_wait(tile.empty(turn.slot), turn.phase ^ 1);
        barrier_expect(full, Tile::STAGE_BYTES);
#pragma unroll
        for (int box = 0; box < Tile::BOXES_A; box++) box_load(slot + box * Tile::BOX_A, a, row, step * Tile::BK + 64 * box, full);
#pragma unroll
        for (int box = 0; box < Tile::BOXES_B; box++)
            box_load(slot + Tile::BYTES_A + box * Tile::BOX_B, b, step * Tile::BK, column + 64 * box, full);
        turn.next();
    }
}

// sums += the products of `steps` steps, 0 or more.
template <class Tile>
__device__ __forceinline__ void consume_part(const Tile &tile, int consumer, int steps, float (&sums)[Tile::BN / 2]) {
    const int lane = thread_index() % 32;
    Turn<Tile::STAGES> turn;
    int last = 0;
    for (int step = 0; step < steps; step++) {
        barrier_wait(tile.full(turn.slot), turn.phase);
        const unsigned long long a = factor(tile.slot(turn.slot) + consumer * 64 * 128, 1024, 0);
        const unsigned long long b = factor(tile.slot(turn.slot) + Tile::BYTES_A, 1024, Tile::BOX_B);
        products_begin();
#pragma unroll
        for (int i = 0; i < Tile::BK / 16; i++)
            warpgroup_product(sums, further(a, i / 4 * Tile::BOX_A + i % 4 * 32), further(b, 16 * 128 * i), 1, typename Tile::Storage{});
        products_commit();
        products_wait<1>();
        if (step > 0 && lane == 0) barrier_arrive(tile.empty(last));
        last = turn.slot;
        turn.next();
    }
    products_wait<0>();
}

// The sums of all blocks of the cluster, unit by unit: this block's share of them. By the consumers.
template <class Tile>
__device__ __forceinline__ void add_up(const Tile &tile, typename Tile::Storage *c, long long m, long long n, int row, int column,
                                       int rank) {
    const int last = Tile::UNITS * (rank + 1) / Tile::S;
    for (int unit = Tile::UNITS * rank / Tile::S + thread_index() / 32; unit < last; unit += Tile::WARPS) {
        float parts[Tile::S][8], total[8];
#pragma unroll
        for (int i = 0; i < Tile::S; i++) {  // all under way before the first is waited for
            const int from = rank + i < Tile::S ? rank + i : rank + i - Tile::S;
            load_from_block(parts[i], tile.sums(unit, 0), from);
            load_from_block(parts[i] + 4, tile.sums(unit, 1), from);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) total[j] = parts[0][j];
#pragma unroll
        for (int i = 1; i < Tile::S; i++) {
#pragma unroll
            for (int j = 0; j < 8; j++) total[j] = sum(total[j], parts[i][j]);
        }
        store_unit(c, m, n, row + unit / Tile::UNITS_A_ROW * 16, column + unit % Tile::UNITS_A_ROW * 16, total);
    }
}

template <class Tile>
__device__ __forceinline__ void split_matmul(const TensorMap &a, const TensorMap &b, typename Tile::Storage *c, long long m, long long k,
                                             long long n) {
    const Tile tile;
    if (thread_index() == 0) {
        for (int i = 0; i < Tile::STAGES; i++) barrier_init(tile.full(i), 1), barrier_init(tile.empty(i), Tile::EMPTY_ARRIVALS);
        barriers_publish();
    }
    block_barrier();
    const int rank = Tile::S > 1 ? static_cast<int>(rank_in_cluster()) : 0;
    const TilePosition at = tile_position<Tile::BM, Tile::BN>(m, n, block_index() / Tile::S);
    const int row = static_cast<int>(at.m * Tile::BM), column = static_cast<int>(at.n * Tile::BN);
    const int steps = static_cast<int>((k + Tile::BK - 1) / Tile::BK);  // 2^24 at most, see matmul_plan.py: no overflow below
    const int first = steps * rank / Tile::S, last = steps * (rank + 1) / Tile::S;
    const int warpgroup = warpgroup_index();
    if (warpgroup == Tile::CONSUMERS) {  // the producer's one warp; a cluster's barriers wait for it too
        if (elected()) produce_part(tile, a, b, row, column, first, last);
        __syncwarp();
        if constexpr (Tile::S > 1) cluster_barrier(), cluster_leave();
        return;
    }
    float sums[Tile::BN / 2] = {};
    consume_part(tile, warpgroup, last - first, sums);
    const int warp = thread_index() / 32;
    if constexpr (Tile::S == 1) {
#pragma unroll
        for (int unit = 0; unit < Tile::UNITS_A_ROW; unit++) {
            store_unit(c, m, n, row + warp * 16, column + unit * 16, sums + 8 * unit);
        }
    } else {
        // All copies have landed, since their products are done; but the block's other consumers may be reading the last slots.
        consumers_barrier<32 * Tile::WARPS>();
#pragma unroll
        for (int unit = 0; unit < Tile::UNITS_A_ROW; unit++) {
            store_shared_16(tile.sums(warp * Tile::UNITS_A_ROW + unit, 0), sums + 8 * unit);
            store_shared_16(tile.sums(warp * Tile::UNITS_A_ROW + unit, 1), sums + 8 * unit + 4);
        }
        cluster_barrier();  // all parts are there
        add_up(tile, c, m, n, row, column, rank);
        cluster_leave();  // and nobody ends before the others have read its part
    }
}
