// C = A B where A has few rows, in 16 bits 4 at most, and B's rows begin anywhere, B itself on 16 bytes: B is read once by pieces of 16 bytes. On any GPU.
//
// How far a row of B begins behind such a piece's beginning repeats every V rows, V elements a piece. So a warp has every V-th row, and of all
// of these its lanes' elements belong to the same columns of C; warps meet in shared memory, each shifted by what its rows are. A block has as
// many columns as make equal blocks of C, up to V fewer than the lanes beside one another have elements. The last row of B, whose pieces would
// reach beyond it, is added by itself.
#pragma once
#include "matmul_row.cuh"

template <class Storage_, int M_, int LANES_, int BLOCKS_> struct SlantedTile {
    using Storage = Storage_;
    using Pieces = Piece<Storage, 16>;
    static constexpr int M = M_, V = Pieces::COUNT, BESIDE = LANES_, WIDE = BESIDE * V;  // rows of A, elements of a piece, of a row's lanes
    static constexpr int THREADS = (M > 1 ? 512 : 1024) / BLOCKS_, WARPS = THREADS / 32, AT_ONCE = THREADS / BESIDE;
    // Pieces of a thread under way at once; of several rows of A twice as many, in turns.
    static constexpr int STEPS = M == 1 ? 8 : M > 4 ? 2 : 4;
    static constexpr int DEPTH = THREADS, EACH = DEPTH / AT_ONCE, TOGETHER = M < 3 ? M : M < 5 ? 4 : M;  // as RowTile's
    static constexpr int ROUND = 8192 / (WARPS * WIDE) < M ? 8192 / (WARPS * WIDE) : M;     // rows of A whose sums meet at once, in 32 KB
    static constexpr int OF_A = M > 1 ? DEPTH * TOGETHER : 0, SUMS = ROUND * WARPS * WIDE, ROOM = OF_A > SUMS ? OF_A : SUMS;
    static_assert(WARPS % V == 0 && (M < 5 || M % 4 == 0) && (M == 1 || EACH % (2 * STEPS) == 0) && ROUND > 0);

    // Of a warp's rows of B, of a thread's; the next of a thread is AT_ONCE below.
    __device__ __forceinline__ static int first_of(int warp) { return warp % V + 32 / BESIDE * V * (warp / V); }
    __device__ __forceinline__ static int first() { return first_of(thread_index() / 32) + thread_index() % 32 / BESIDE * V; }
    // Elements by which a warp's rows begin behind a piece's beginning.
    __device__ __forceinline__ static int slant(int warp, long long n) { return static_cast<int>(warp % V * (n % V)) % V; }
};

// m = M, or of 8 and 16 less; n > V; B begins on 16 bytes. The grid is of any size from n / (WIDE - V) blocks on.
template <class Tile>
__device__ __forceinline__ void slanted_matmul(const typename Tile::Storage *a, const typename Tile::Storage *b, typename Tile::Storage *c,
                                               long long m, long long k, long long n) {
    constexpr int M = Tile::M, V = Tile::V, WIDE = Tile::WIDE, WARPS = Tile::WARPS, ROUND = Tile::ROUND;
    __shared__ alignas(16) float room[Tile::ROOM];
    auto &parts = *reinterpret_cast<float(*)[ROUND][WARPS][WIDE]>(room);
    const int warp = thread_index() / 32, lane = thread_index() % 32, slant = Tile::slant(warp, n);
    const long long each = ((n + gridDim.x - 1) / gridDim.x + V - 1) / V * V, column0 = block_index() * each;
    const int columns = least(n - column0, static_cast<int>(each)), from = lane % Tile::BESIDE * V - slant;  // of the block; of the thread
    const auto *pieces = b + column0 + from;
    const int rows = M > 4 ? static_cast<int>(m) : M;
    float sums[M][V] = {};
    if constexpr (M == 1)
        add_rows<Tile>(sums, a, pieces, k - 1, n, from < columns);
    else
        add_rows_for_several<Tile>(sums, room, a, pieces, rows, k, k - 1, n, from < columns);
#pragma unroll
    for (int r = 0; r < M; r++) {
#pragma unroll
        for (int v = 0; v < V; v++) sums[r][v] = over_distances(sums[r][v], 16, Tile::BESIDE);
    }
#pragma unroll
    for (int r0 = 0; r0 < M; r0 += ROUND) {
        if (r0 > 0) block_barrier();
        if (lane < Tile::BESIDE) {
#pragma unroll
            for (int r = 0; r < ROUND; r++) {
#pragma unroll
                for (int v = 0; v < V; v++)
                    if (r0 + r < M) parts[r][warp][lane * V + v] = sums[r0 + r < M ? r0 + r : 0][v];
            }
        }
        block_barrier();
        for (int i = thread_index(); i < least(M - r0, ROUND) * WIDE; i += Tile::THREADS) {
            const int r = i / WIDE, column = i % WIDE;
            if (column >= columns || r0 + r >= rows) continue;
            float total = to_float(a[(r0 + r) * k + k - 1]) * to_float(b[(k - 1) * n + column0 + column]);
#pragma unroll
            for (int w = 0; w < WARPS; w++) total = sum(total, parts[r][w][column + Tile::slant(w, n)]);
            from_float(total, c[(r0 + r) * n + column0 + column]);
        }
    }
}
