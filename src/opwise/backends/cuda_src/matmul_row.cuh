// C = A B where A has 4 rows at most: B is read once, wherever its rows begin, and that is the time. On any GPU.
//
// A block has COLUMNS columns of B, one of its 1024 threads GRANULE bytes of a row: neighbours lie side by side, and all take rows in turns.
// Sums meet by shuffles, where a warp has several rows, and in shared memory, in a fixed order.
#pragma once
#include "elements.cuh"
#include "matmul_ptx.cuh"

template <class Storage_, int M_, int COLUMNS_, int BLOCKS_, int GRANULE_> struct RowTile {
    using Storage = Storage_;
    using Pieces = Piece<Storage, GRANULE_>;
    static constexpr int M = M_, COLUMNS = COLUMNS_, THREADS = 1024, WARPS = THREADS / 32, V = Pieces::COUNT;
    static constexpr int BESIDE = COLUMNS / V, AT_ONCE = THREADS / BESIDE;  // threads of a row, rows
    // Rows of a thread that are under way at once, as registers allow.
    static constexpr int STEPS = BLOCKS_ > 1 ? 4 : M > 3 ? 6 : M == 1 && V == 1 ? 16 : 8;
    static constexpr int PARTS = BESIDE < 32 ? WARPS : AT_ONCE;  // of a column's sum, in shared memory
    static_assert(32 % BESIDE == 0 ? COLUMNS <= WARPS : BESIDE % 32 == 0 && V == 1);
};

__device__ __forceinline__ float over_distances(float x, int from, int to) {
#pragma unroll
    for (int distance = from; distance >= to; distance /= 2) x = sum(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
}

// m = M. n is a multiple of V; for pieces of 16 bytes B begins on 16 bytes.
template <class Tile>
__device__ __forceinline__ void row_matmul(const typename Tile::Storage *a, const typename Tile::Storage *b, typename Tile::Storage *c,
                                           long long, long long k, long long n) {
    constexpr int M = Tile::M, COLUMNS = Tile::COLUMNS, V = Tile::V, BESIDE = Tile::BESIDE;
    using Pieces = typename Tile::Pieces;
    __shared__ float parts[M][COLUMNS][Tile::PARTS + 1];
    const int lane = thread_index() % 32, warp = thread_index() / 32;
    const long long column0 = static_cast<long long>(block_index()) * COLUMNS, column = column0 + thread_index() % BESIDE * V;
    float sums[M][V] = {};
    if (column < n) {
        const int first = thread_index() / BESIDE;
        const auto *from_a = a + first;
        const auto *from_b = b + first * n + column;
        const long long below = Tile::AT_ONCE * n;
        const auto take = [&](int rows) {  // of STEPS; all of them are under way at once
            typename Tile::Storage raw_a[Tile::STEPS][M];
            typename Pieces::Raw raw_b[Tile::STEPS];
#pragma unroll
            for (int s = 0; s < Tile::STEPS; s++) {
                if (s >= rows) break;
                raw_b[s] = *reinterpret_cast<const typename Pieces::Raw *>(from_b + s * below);
#pragma unroll
                for (int r = 0; r < M; r++) raw_a[s][r] = from_a[r * k + s * Tile::AT_ONCE];
            }
#pragma unroll
            for (int s = 0; s < Tile::STEPS; s++) {
                if (s >= rows) break;
                float y[V];
                Pieces::unpack(raw_b[s], y);
#pragma unroll
                for (int r = 0; r < M; r++) {
                    const float x = to_float(raw_a[s][r]);
#pragma unroll
                    for (int v = 0; v < V; v++) sums[r][v] = fused(x, y[v], sums[r][v]);
                }
            }
        };
        long long left = (k - first + Tile::AT_ONCE - 1) / Tile::AT_ONCE;
#pragma unroll 1
        for (; left >= Tile::STEPS; left -= Tile::STEPS) {
            take(Tile::STEPS);
            from_a += Tile::STEPS * Tile::AT_ONCE, from_b += Tile::STEPS * below;
        }
        take(static_cast<int>(left));
    }
    if constexpr (BESIDE > 32) {
#pragma unroll
        for (int r = 0; r < M; r++) parts[r][thread_index() % BESIDE][thread_index() / BESIDE] = sums[r][0];
        block_barrier();
        for (int i = thread_index(); i < M * COLUMNS; i += Tile::THREADS) {
            const float *part = parts[i / COLUMNS][i % COLUMNS];
            float total = part[0];
#pragma unroll
            for (int p = 1; p < Tile::PARTS; p++) total = sum(total, part[p]);
            if (column0 + i % COLUMNS < n) from_float(total, c[i / COLUMNS * n + column0 + i % COLUMNS]);
        }
        return;
    }
#pragma unroll
    for (int r = 0; r < M; r++) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float of_warp = over_distances(sums[r][v], 16, BESIDE);
            if (lane < BESIDE) parts[r][lane * V + v][warp] = of_warp;
        }
    }
    block_barrier();
    if (warp >= COLUMNS) return;  // a warp for a column
#pragma unroll
    for (int r = 0; r < M; r++) {
        const float total = over_distances(parts[r][warp][lane], 16, 1);
        if (lane == 0 && column0 + warp < n) from_float(total, c[r * n + column0 + warp]);
    }
}
