// C = A B in float32 without TF32 on sm_90, for unaligned rows and for few tiles: as ffma_tma.cuh, but the warps of a block split K instead
// of the tile.
//
// A warp has the whole tile, TM x TN elements per thread, and every WARPS-th step of 16 k, in a ring of its own. So warps do not wait for
// each other before the final reduction, and a tile of 64 x 64 keeps an SM as busy as one of 128 x 128, with twice the bytes from L2.
//
// A box of unaligned rows (residue_maps.cuh) has every fourth row. So the rows of A are permuted in shared memory, and the sums' rows until
// the reduction; the rows of B, which are k, are permuted at compile-time offsets. A is read by words, which may be shifted; B by 16 bytes,
// so its rows are aligned first.
#pragma once
#include "matmul/common/cluster_reduce.cuh"
#include "matmul/kernels/ffma_tile.cuh"
#include "matmul/kernels/tile.cuh"

// The ring of each warp of a block, empty. Returns whether this thread fills its warp's ring.
template <class Tile> __device__ __forceinline__ bool begin_rings(const Tile &tile) {
    const bool fills = elected();
    if (fills) {
        for (int i = 0; i < Tile::STAGES; i++) barrier_init(tile.full(i), 1);
        barriers_publish();
    }
    warp_barrier();
    return fills;
}

// Computes the sums of the tile at (row, column) over this warp's steps of `part`, and writes them to its ring, where `sum_of_warps` reads
// them after a barrier. turn: the state of the ring, whose slots are empty before and after.
template <class Tile, class FactorA, class FactorB>
__device__ __forceinline__ void write_sums(const Tile &tile, bool fills, PipelineState<Tile::STAGES> &turn, const FactorA &a, const FactorB &b,
                                         int row, int column, Steps part, long long m, long long k, long long n) {
    constexpr int TM = Tile::TM, TN = Tile::TN, STAGES = Tile::STAGES, BN = Tile::BN, BK = Tile::BK, WARPS = Tile::WARPS;
    const int first = part.first + tile.warp, steps = (part.last - first + WARPS - 1) / WARPS;  // of this warp, possibly none
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
                    } else {  // after the last step the loads are not used
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
        if constexpr (Tile::ANY) publish_to_copies();  // orders align_rows' writes before the next copies
        warp_barrier();  // all lanes have left the slot
        if (step + STAGES < steps) fill(slot, step + STAGES);
    }

    warp_barrier();  // for a warp without steps, whose lanes have read the ring too
    // The ring is no longer read: the warp writes its sums there, in the order of A's rows.
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

// Element e of a tile: the sum over the warps.
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
