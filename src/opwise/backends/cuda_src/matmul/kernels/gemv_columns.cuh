// C = A B with at most 7 columns of B, by float32 FMA, on any GPU. A is read once, at the bandwidth of memory.
//
// SHARING threads have 4 rows of A and share K: a block, or for short K a warp or 8 lanes. They load neighbouring pieces of GRANULE bytes
// of a row, V elements each. The V rows of B for these are contiguous, V N elements, and so N pieces of the same width, which come from L1
// after the first read. Sums are reduced by shuffles, each step with half the rows, and those of warps in shared memory, in a fixed order.
#pragma once
#include "common/elements.cuh"
#include "matmul/kernels/tile.cuh"

template <class Storage_, int N_, int SHARING_, int GRANULE_> struct GemvColumnsTile {
    using Storage = Storage_;
    using Pieces = Piece<Storage, GRANULE_>;
    static constexpr int N = N_, SHARING = SHARING_, V = Pieces::COUNT, THREADS = 256, WARPS = THREADS / 32;
    static constexpr int LANES = SHARING < 32 ? SHARING : 32, ROWS = 4, BLOCK_ROWS = ROWS * THREADS / SHARING;
    static constexpr int STEPS = V == 1 ? 8 : N > 5 ? 1 : 2;  // in flight at once
    static_assert(SHARING == 8 || SHARING == 32 || SHARING == THREADS);
};

// Reduces over LANES lanes: the first quarter of them gets row 0's sum in sums[0], the next row 1's, and so on.
template <int LANES, int N> __device__ __forceinline__ void over_lanes(float (&sums)[4][N], int lane) {
#pragma unroll
    for (int j = 0; j < N; j++) {
#pragma unroll
        for (int left = 2; left > 0; left /= 2) {  // a lane sends half of its rows and keeps the others
            const int distance = LANES / 4 * left;
            const bool upper = lane & distance;
#pragma unroll
            for (int r = 0; r < left; r++) {
                const float given = upper ? sums[r][j] : sums[r + left][j], kept = upper ? sums[r + left][j] : sums[r][j];
                sums[r][j] = sum(kept, __shfl_xor_sync(0xffffffffu, given, distance));
            }
        }
#pragma unroll
        for (int distance = LANES / 8; distance > 0; distance /= 2)
            sums[0][j] = sum(sums[0][j], __shfl_xor_sync(0xffffffffu, sums[0][j], distance));
    }
}

// n = N. k is a multiple of V; for pieces of 16 bytes A and B begin on 16 bytes.
template <class Tile>
__device__ __forceinline__ void gemv_columns_matmul(const typename Tile::Storage *a, const typename Tile::Storage *b, typename Tile::Storage *c,
                                               long long m, long long k, long long) {
    constexpr int ROWS = Tile::ROWS, N = Tile::N, V = Tile::V, SHARING = Tile::SHARING, LANES = Tile::LANES;
    using Pieces = typename Tile::Pieces;
    using Raw = typename Pieces::Raw;
    const int lane = thread_index() % LANES, warp = thread_index() / 32;
    const long long row0 = static_cast<long long>(block_index()) * Tile::BLOCK_ROWS + thread_index() / SHARING * ROWS, pieces = k / V;
    const Raw *from_b = reinterpret_cast<const Raw *>(b), *from_a[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) from_a[r] = reinterpret_cast<const Raw *>(a + min(row0 + r, m - 1) * k);  // beyond A: the last row
    float sums[ROWS][N] = {};
    const auto multiply = [&](const Raw (&raw_a)[ROWS], const Raw (&raw_b)[N]) {
        float y[V * N];
#pragma unroll
        for (int j = 0; j < N; j++) Pieces::unpack(raw_b[j], y + j * V);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float x[V];
            Pieces::unpack(raw_a[r], x);
#pragma unroll
            for (int v = 0; v < V; v++) {
#pragma unroll
                for (int j = 0; j < N; j++) sums[r][j] = fused(x[v], y[v * N + j], sums[r][j]);
            }
        }
    };
    const auto take = [&](long long i, int rounds) {  // at most STEPS, all in flight at once
        Raw raw_a[Tile::STEPS][ROWS], raw_b[Tile::STEPS][N];
#pragma unroll
        for (int s = 0; s < Tile::STEPS; s++) {
            if (s >= rounds) break;
#pragma unroll
            for (int r = 0; r < ROWS; r++) raw_a[s][r] = from_a[r][i + s * SHARING];
#pragma unroll
            for (int j = 0; j < N; j++) raw_b[s][j] = from_b[(i + s * SHARING) * N + j];
        }
#pragma unroll
        for (int s = 0; s < Tile::STEPS; s++) {
            if (s >= rounds) break;
            multiply(raw_a[s], raw_b[s]);
        }
    };
    const int first = thread_index() % SHARING;
    long long left = (pieces - first + SHARING - 1) / SHARING, i = first;
#pragma unroll 1
    for (; left >= Tile::STEPS; left -= Tile::STEPS, i += Tile::STEPS * SHARING) take(i, Tile::STEPS);
    if (Tile::STEPS > 1) take(i, static_cast<int>(left));
    over_lanes<LANES>(sums, lane);
    const int row = lane / (LANES / 4);
    const bool tells = lane % (LANES / 4) == 0;
    if constexpr (SHARING <= 32) {
        if (tells && row0 + row < m) {
#pragma unroll
            for (int j = 0; j < N; j++) from_float(sums[0][j], c[(row0 + row) * N + j]);
        }
    } else {
        __shared__ float of_warps[Tile::WARPS][ROWS * N];
        if (tells) {
#pragma unroll
            for (int j = 0; j < N; j++) of_warps[warp][row * N + j] = sums[0][j];
        }
        block_barrier();
        if (thread_index() < least(m - row0, ROWS) * N) {
            float total = of_warps[0][thread_index()];
#pragma unroll
            for (int w = 1; w < Tile::WARPS; w++) total = sum(total, of_warps[w][thread_index()]);
            from_float(total, c[row0 * N + thread_index()]);
        }
    }
}
