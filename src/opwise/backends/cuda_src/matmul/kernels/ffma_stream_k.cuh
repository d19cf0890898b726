// stream-K with the tiles of ffma.cuh: all SMs have the same amount of work for any number of tiles.
//
// The rounds of all tiles (a round: one step of K of every warp) are a sequence, of which each block has an equal consecutive share. The
// blocks of a tile are neighbours. The first of them writes its sums to C, the next adds its own, and so on in the order of blocks, the
// same in every run. Only elements of C that an earlier block has written are read.
//
// A block computes its share backwards: first the part of a tile that the next block waits for, last the part for which it waits itself. If
// a share is longer than a tile, blocks hardly ever wait. A block waits only for the block before it; the launch is cooperative, so that
// all blocks run.
//
// flags: one per block, 0 before and after the launch; 1 while the block's sums are in C and the next block has not seen it.
#pragma once
#include "matmul/kernels/ffma.cuh"

__device__ __forceinline__ unsigned seen(const unsigned *flag) {
    unsigned x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(flag) : "memory");
    return x;
}
__device__ __forceinline__ void raise(unsigned *flag) { asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory"); }
__device__ __forceinline__ void clear(unsigned *flag) { asm volatile("st.relaxed.gpu.global.u32 [%0], 0;" ::"l"(flag) : "memory"); }
// Another block's sum, read past L1.
__device__ __forceinline__ float load_left(const float *from) {
    float x;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
    return x;
}

// The tile's sums, which all warps have written, are stored to C; if ADDS, added to the sums that are there.
template <bool ADDS, class Tile>
__device__ __forceinline__ void leave_sums(const Tile &tile, float *c, long long n, int rows_left, int columns_left) {
    constexpr int EACH = Tile::BM * Tile::BN / Tile::THREADS;
    constexpr int TOGETHER = EACH % 10 == 0 ? 10 : EACH % 12 == 0 ? 12 : EACH % 8 == 0 ? 8 : 4;  // elements loaded at once
    static_assert(Tile::BM * Tile::BN % Tile::THREADS == 0 && EACH % TOGETHER == 0);
#pragma unroll 1
    for (int from = 0; from < EACH; from += TOGETHER) {
        float totals[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int e = thread_index() + (from + i) * Tile::THREADS, row = e / Tile::BN, column = e % Tile::BN;
            totals[i] = ADDS && row < rows_left && column < columns_left ? load_left(c + row * n + column) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const float mine = sum_of_warps(tile, thread_index() + (from + i) * Tile::THREADS);
            totals[i] = ADDS ? sum(totals[i], mine) : mine;
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int e = thread_index() + (from + i) * Tile::THREADS, row = e / Tile::BN, column = e % Tile::BN;
            if (row < rows_left && column < columns_left) c[row * n + column] = totals[i];
        }
    }
}

template <class Tile, class FactorA, class FactorB>
__device__ __forceinline__ void ffma_stream_k_matmul(const FactorA &a, const FactorB &b, float *c, long long m, long long k, long long n,
                                                  unsigned *flags) {
    constexpr int BM = Tile::BM, BN = Tile::BN, BK = Tile::BK, WARPS = Tile::WARPS;
    const Tile tile;
    const bool fills = begin_rings(tile);
    const int steps = static_cast<int>((k + BK - 1) / BK);
    const long long rounds = (steps + WARPS - 1) / WARPS, all = (m + BM - 1) / BM * ((n + BN - 1) / BN) * rounds;
    const int block = static_cast<int>(block_index()), blocks = static_cast<int>(gridDim.x);
    const long long begin = all * block / blocks;
    PipelineState<Tile::STAGES> turn;
    for (long long to = all * (block + 1) / blocks; to > begin;) {
        const long long index = (to - 1) / rounds, first = index * rounds, from = begin > first ? begin : first;
        const TilePosition at = tile_position<BM, BN>(m, n, static_cast<unsigned>(index));
        const int row = static_cast<int>(at.m) * BM, column = static_cast<int>(at.n) * BN;
        const Steps part{static_cast<int>(from - first) * WARPS, min(static_cast<int>(to - first) * WARPS, steps)};
        write_sums(tile, fills, turn, a, b, row, column, part, m, k, n);
        publish_to_copies();  // TMA overwrites the ring
        float *sums = c + row * n + column;
        const int rows_left = least(m - row, BM), columns_left = least(n - column, BN);
        if (from > first) {
            if (thread_index() == 0) {
                while (seen(flags + block - 1) == 0) {
                }
                clear(flags + block - 1);
            }
            block_barrier();
            leave_sums<true>(tile, sums, n, rows_left, columns_left);
        } else {
            block_barrier();
            leave_sums<false>(tile, sums, n, rows_left, columns_left);
        }
        block_barrier();
        if (to - first < rounds && thread_index() == 0) raise(flags + block);
        to = from;
    }
}
