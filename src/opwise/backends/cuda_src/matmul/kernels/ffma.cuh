// C = A B in plain float32 on Hopper, for rows that begin anywhere and for few tiles: the multiply-adds of ffma_tma.cuh, whose warps
// share K instead of the tile.
//
// A warp has a whole tile, TM x TN elements a thread, and every WARPS-th step of 16 k; each has a ring of its own, which it fills and
// empties alone. So nobody waits for another before the sums meet, and a tile of 64 x 64 keeps a multiprocessor as busy as one of 128 x 128
// does, at twice the bytes from the L2.
//
// Of rows that begin anywhere (residue_maps.cuh) a box has every fourth: the rows of A lie permuted, and with them those of the sums until
// they meet; so do the rows of B, which are k, and are read by places known to the compiler. A is read word by word, so that rows may begin
// early; B by fours, so its rows are moved first.
#pragma once
#include "matmul/common/cluster_reduce.cuh"
#include "matmul/kernels/ffma_tile.cuh"
#include "matmul/kernels/tile.cuh"

// The ring of each warp of a block, empty. Is this the thread that fills its warp's?
template <class Tile> __device__ __forceinline__ bool begin_rings(const Tile &tile) {
    const bool fills = elected();
    if (fills) {
        for (int i = 0; i < Tile::STAGES; i++) barrier_init(tile.full(i), 1);
        barriers_publish();
    }
    warp_barrier();
    return fills;
}

// The sums of the tile at (row, column) over steps `part` of K, of which every warp takes its own; it lays them into its own ring, where
// `sum_of_warps` finds them behind a barrier. `turn`: of the ring, whose slots are empty before and after.
template <class Tile, class FactorA, class FactorB>
__device__ __forceinline__ void write_sums(const Tile &tile, bool fills, PipelineState<Tile::STAGES> &turn, const FactorA &a, const FactorB &b,
                                         int row, int column, Steps part, long long m, long long k, long long n) {
    constexpr int TM = Tile::TM, TN = Tile::TN, STAGES = Tile::STAGES, BN = Tile::BN, BK = Tile::BK, WARPS = Tile::WARPS;
    const int first = part.first + tile.warp, steps = (part.last - first + WARPS - 1) / WARPS;  // of this warp, which may be none
    const auto fill = [&](int slot, int step) {
        const int depth = (first + step * WARPS) * BK;
        if (fills) {
            barrier_expect(tile.full(slot), Tile::FILLED);
            boxes_load<Tile::BOX_A>(tile.slot(slot), a, row, depth, tile.full(slot));
            boxes_load<Tile::BOX_B>(tile.slot(slot) + Tile::BYTES_A, b, depth, column, tile.full(slot));
        }
    };
    for (int step = 0; step < STAGES && step < steps; step++) {
        const int slot = turn.slot + step;
        fill(slot < STAGES ? slot : slot - STAGES, step);
    }

    float sums[TM][TN] = {}, of_a[TM], of_b[2][TN];
    const auto load_b = [&](float(&to)[TN], SharedAddress from, int k) {
#pragma unroll
        for (int q = 0; q < TN / 4; q++) load_floats(to + 4 * q, Tile::of_b(from, q, k));
    };
    SharedAddress from_a[Tile::CLASSES], from_b;
    const auto go = [&](int slot, int depth) {
#pragma unroll
        for (int i = 0; i < Tile::CLASSES; i++) from_a[i] = tile.slot(slot) + tile.of_a(depth) + shift_of(a, i) * 4;
        from_b = tile.slot(slot) + tile.of_b(depth);
    };
    const auto landed = [&](int slot, unsigned phase) {
        barrier_wait(tile.full(slot), phase);
        if constexpr (Tile::ANY) align_rows<Tile>(tile.slot(slot) + Tile::BYTES_A, b);
    };
    const auto load_a = [&](int r, int k) { return load_float(Tile::of_a(from_a[Tile::class_of(r)], r, k)); };
    if (steps > 0) landed(turn.slot, turn.phase);
    go(turn.slot, 0);
#pragma unroll
    for (int r = 0; r < TM; r++) of_a[r] = load_a(r, 0);
    load_b(of_b[0], from_b, 0);
    for (int step = 0; step < steps; step++) {
        const int slot = turn.slot;
#pragma unroll 1
        for (int depth = 0; depth < BK; depth += Tile::TURN) {
#pragma unroll
            for (int i = 0; i < Tile::TURN; i++) {
                const int next = (i + 1) % Tile::TURN;
                if (next == 0) {
                    if (depth + Tile::TURN < BK) {
                        go(slot, depth + Tile::TURN);
                    } else {  // behind the last step something is read, and not used
                        turn.next();
                        if (step + 1 < steps) landed(turn.slot, turn.phase);
                        go(turn.slot, 0);
                    }
                }
                load_b(of_b[next % 2], from_b, next);
#pragma unroll
                for (int r = 0; r < TM; r++) {
#pragma unroll
                    for (int i_s = 0; i_s < TN; i_s++) {
                        const int s = r % 2 ? TN - 1 - i_s : i_s;
                        sums[r][s] = fused(of_a[r], of_b[i % 2][s], sums[r][s]);
                    }
                    of_a[r] = load_a(r, next);
                }
            }
        }
        if constexpr (Tile::ANY) publish_to_copies();  // which must not come before what was written here
        warp_barrier();  // all lanes have left the slot
        if (step + STAGES < steps) fill(slot, step + STAGES);
    }

    warp_barrier();  // for a warp without a step, whose lanes have read their ring all the same
    // A warp lays its sums into its own ring, which nobody reads any more, rows where those of A lay.
    const unsigned as_it_is = m < 0 ? 0 : 0x3210;
#pragma unroll
    for (int r = 0; r < TM; r++) {
#pragma unroll
        for (int q = 0; q < TN / 4; q++) {
            const SharedAddress to = tile.slot(0) + ((tile.y + r * Tile::TY) * Tile::PITCH + (tile.x + q * Tile::TX) * 4) * 4;
            store_shared_16(to, apart(&sums[r][4 * q], as_it_is));
        }
    }
}

// Element e of a tile: the sum of what the warps laid.
template <class Tile> __device__ __forceinline__ float sum_of_warps(const Tile &tile, int e) {
    const SharedAddress from = tile.ring(0) + (Tile::place(e / Tile::BN) * Tile::PITCH + e % Tile::BN) * 4;
    float found = load_float(from);
#pragma unroll
    for (int warp = 1; warp < Tile::WARPS; warp++) found = sum(found, load_float(from + warp * Tile::RING_BYTES));
    return found;
}

template <class Tile, class FactorA, class FactorB>
__device__ __forceinline__ void ffma_matmul(const FactorA &a, const FactorB &b, float *c, long long m, long long k, long long n) {
    constexpr int BM = Tile::BM, BN = Tile::BN, BK = Tile::BK;
    const Tile tile;
    const bool fills = begin_rings(tile);
    const TilePosition at = tile_position<BM, BN>(m, n, block_index());
    const int row = static_cast<int>(at.m) * BM, column = static_cast<int>(at.n) * BN;
    PipelineState<Tile::STAGES> turn;
    write_sums(tile, fills, turn, a, b, row, column, Steps{0, static_cast<int>((k + BK - 1) / BK)}, m, k, n);
    block_barrier();
#pragma unroll 4
    for (int i = 0; i < BM * BN / Tile::THREADS; i++) {  // neighbouring threads store neighbouring elements
        const int e = thread_index() + i * Tile::THREADS;
        const float found = sum_of_warps(tile, e);
        if (e / BN < m - row && e % BN < n - column) c[(row + e / BN) * n + column + e % BN] = found;
    }
}
