// C = A B on Hopper by pairs of blocks, clusters whose tiles of C lie one below the other and that fetch B for each other.
//
// A block multiplies its own tile over all of K, as in matmul_split.cuh with S = 1. Of the columns of B that the two have in common each
// fetches half, for both, so that a tile asks the L2 for A + B / 2 instead of A + B. That should pay where requests to the L2 are the limit:
// of rows that are not a multiple of 128 bytes apart, 128 bytes lie in two lines. A slot is filled once both blocks have read it.
#pragma once
#include "matmul_split.cuh"

template <class Storage, int BM, int BN, int BK, int STAGES, unsigned GROUP>
struct PairTile : SplitTile<Storage, BM, BN, BK, STAGES, 1, 1, GROUP> {
    using Alone = SplitTile<Storage, BM, BN, BK, STAGES, 1, 1, GROUP>;
    static constexpr bool PAIRED = true;
    static constexpr int EMPTY_ARRIVALS = 2 * Alone::EMPTY_ARRIVALS;
    static_assert(Alone::BOXES_B % 2 == 0, "halves of B are whole boxes");
};

// As produce_part, of all steps. By one thread of each block.
template <class Tile>
__device__ __forceinline__ void produce_for_both(const Tile &tile, const TensorMap &a, const TensorMap &b, int row, int column, int rank,
                                                 int steps) {
    constexpr int HALF = Tile::BOXES_B / 2;
    Turn<Tile::STAGES> turn;
    for (int step = 0; step < steps; step++) {
        const SharedAddress slot = tile.slot(turn.slot), full = tile.full(turn.slot);
        barrier_wait(tile.empty(turn.slot), turn.phase ^ 1);
        barrier_expect(full, Tile::STAGE_BYTES);  // the other block's half may have landed already
#pragma unroll
        for (int box = 0; box < Tile::BOXES_A; box++) box_load(slot + box * Tile::BOX_A, a, row, step * Tile::BK + 64 * box, full);
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            const int box = rank * HALF + i;
            box_load_both(slot + Tile::BYTES_A + box * Tile::BOX_B, b, step * Tile::BK, column + 64 * box, full);
        }
        turn.next();
    }
    // The other block releases slots here: this one must be there until it has.
    for (int i = 0; i < Tile::STAGES; i++, turn.next()) barrier_wait(tile.empty(turn.slot), turn.phase ^ 1);
}

template <class Tile>
__device__ __forceinline__ void pair_matmul(const TensorMap &a, const TensorMap &b, typename Tile::Storage *c, long long m, long long k,
                                            long long n) {
    const Tile tile;
    if (thread_index() == 0) {
        for (int i = 0; i < Tile::STAGES; i++) barrier_init(tile.full(i), 1), barrier_init(tile.empty(i), Tile::EMPTY_ARRIVALS);
        barriers_publish();
    }
    block_barrier();
    cluster_arrive();
    const int rank = static_cast<int>(rank_in_cluster());
    const TilePosition at = tile_position<2 * Tile::BM, Tile::BN, Tile::GROUP>(m, n, block_index() / 2);
    const int row = static_cast<int>(at.m * 2 + rank) * Tile::BM, column = static_cast<int>(at.n * Tile::BN);
    const int steps = static_cast<int>((k + Tile::BK - 1) / Tile::BK);
    const int warpgroup = warpgroup_index();
    cluster_wait();  // nobody fetches for a block whose barriers are not there
    if (warpgroup == Tile::CONSUMERS) {
        if (elected()) produce_for_both(tile, a, b, row, column, rank, steps);
        return;
    }
    float sums[Tile::BN / 2];
    consume_part(tile, warpgroup, steps, sums, [&](int slot) {
        const int lane = thread_index() % 32;
        if (lane < 2) barrier_arrive_there(of_block(tile.empty(slot), lane));
    });
    store_sums<Tile>(c, m, n, row, column, sums);
}
