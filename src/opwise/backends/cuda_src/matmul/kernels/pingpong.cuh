// C = A B on Hopper's tensor cores, 16-bit factors: two consumer warpgroups, each with a tile of its own, take turns at multiplying.
//
// In wgmma.cuh both share a tile, and while they store it the tensor cores rest. Here each computes all BM x BN of a tile, by BM / 64
// products of 64 rows, and lets the other begin as soon as its own last products are on the way: one stores under the other's main loop. Both
// read one ring, which the producer fills in the order of tiles, and a slot has one reader.
//
// Two blocks, a cluster, fetch rows of A for each other. Where the rows of A and B are a multiple of 128 bytes apart that gains nothing; where
// they are not, a row of a box lies in two lines, the L2 answers two requests for one, and 224 rows a step for 320 are 3000 cubed in 81 us
// for 113 (docs/lab/matmul.md).
#pragma once
#include "matmul/kernels/wgmma.cuh"

template <class Tile>
__device__ __forceinline__ void consume_in_turns(const Tile &tile, const TensorMap &c, long long m, int k, long long n, int consumer) {
    constexpr int OWN_TURN = 3;  // and the next: barriers at which a consumer waits for its turn
    const int steps = (k + Tile::BK - 1) / Tile::BK;
    const unsigned count = tiles_of<Tile>(m, n);
    PipelineState<Tile::STAGES> turn;
    if (consumer == 1) turn.skip(steps);
    const unsigned step = clusters<Tile>();
    for (unsigned i = block_index() / Tile::CLUSTER + consumer * step; i < count; i += 2 * step) {
        const Corner at = tile_corner<Tile>(m, n, i);
        float sums[Tile::UNITS][Tile::BN / 2];
        if (i >= step) warpgroup_barrier<256>(OWN_TURN + consumer);  // the other has the tile before
        const int last = multiply(tile, turn, k, 0, sums);
        if (i + step < count) warpgroup_let<256>(OWN_TURN + 1 - consumer);  // a step is still being multiplied: time enough to begin
        products_wait<0>();
        release(tile, last);
        turn.skip(steps);  // the other's tile
#pragma unroll
        for (int unit = 0; unit < Tile::UNITS; unit++)
            store_rows(tile, c, at.row + 64 * unit, at.column, consumer, sums[unit], unit);
    }
}

template <class Tile>
__device__ __forceinline__ void pingpong_matmul(const TensorMap &a, const TensorMap &b, const TensorMap &c, long long m, long long k,
                                                long long n) {
    by_warpgroups<Tile>(a, b, m, k, n,
                        [&](const Tile &tile, int consumer) { consume_in_turns(tile, c, m, static_cast<int>(k), n, consumer); });
}
