// C = A B by wgmma (sm_90a), 16-bit factors, ping-pong: two consumer warpgroups, each with its own tile, alternate in the main loop.
//
// In wgmma.cuh the consumers share a tile, and the tensor cores are idle while they store it. Here each computes a whole BM x BN tile, by
// BM / 64 wgmmas of 64 rows, and lets the other start once its last wgmmas are issued, so that a store overlaps the other's main loop. Both
// read one ring, which the producer fills in the order of tiles; a slot has one reader.
//
// The two blocks of a cluster multicast rows of A to each other. If the row pitches are multiples of 128 bytes this gains nothing.
// Otherwise a row of a box is in two cache lines, and L2 serves two requests: for 3000 cubed, loading 224 instead of 320 rows per step
// takes 81 us instead of 113 (docs/lab/matmul.md).
#pragma once
#include "matmul/kernels/wgmma.cuh"

template <class Tile>
__device__ __forceinline__ void consume_in_turns(const Tile &tile, const TensorMap &c, long long m, int k, long long n, int consumer) {
    constexpr int OWN_TURN = 3;  // named barriers 3 and 4, at which the consumers wait for their turn
    const int steps = (k + Tile::BK - 1) / Tile::BK;
    const unsigned count = tiles_of<Tile>(m, n);
    PipelineState<Tile::STAGES> turn;
    if (consumer == 1) turn.skip(steps);
    const unsigned step = clusters<Tile>();
    for (unsigned i = block_index() / Tile::CLUSTER + consumer * step; i < count; i += 2 * step) {
        const Corner at = tile_corner<Tile>(m, n, i);
        float sums[Tile::UNITS][Tile::BN / 2];
        if (i >= step) warpgroup_barrier<256>(OWN_TURN + consumer);  // the other consumer has the tile before
        const int last = multiply(tile, turn, k, 0, sums);
        if (i + step < count) warpgroup_let<256>(OWN_TURN + 1 - consumer);  // while this one's last step is multiplied
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
