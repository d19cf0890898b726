// C = A B of a short K and many tiles, whose time is to begin, to read and to write: several blocks a multiprocessor, each with one step of K
// under way at a time, so that one multiplies while others wait.
//
// Copies go past the registers, which more blocks have room for. The tile goes out through shared memory, by neighbouring threads neighbouring
// pieces of a row: whole sectors, where a thread's own elements would be parts of some.
#pragma once
#include "matmul_once_sums.cuh"

// Copies a ROWS x COLUMNS tile whose rows lie PITCH bytes apart in shared memory, with zeros beyond the matrix.
template <class Storage, int ROWS, int COLUMNS, int GRANULE, int THREADS, int PITCH>
__device__ __forceinline__ void copy_step(SharedAddress to, const Storage *tile, long long pitch, int rows_left, int columns_left) {
    constexpr int ELEMENTS = GRANULE / sizeof(Storage), BESIDE = COLUMNS / ELEMENTS, AT_ONCE = THREADS / BESIDE;
    static_assert(THREADS % BESIDE == 0 && ROWS % AT_ONCE == 0, "a pass covers whole rows, and passes the tile");
    const int row = thread_index() / BESIDE, column = thread_index() % BESIDE * ELEMENTS;
    const int left = column < columns_left ? rows_left - row : 0;
    const Storage *from = tile + row * pitch + column;
    to += row * PITCH + column * sizeof(Storage);
#pragma unroll
    for (int i = 0; i < ROWS; i += AT_ONCE, from += AT_ONCE * pitch) copy_async<GRANULE>(to + i * PITCH, i < left ? from : tile, i < left);
}

// A tile of C in shared memory, as float32.
template <int BM_, int BN_> struct Laid {
    static constexpr int BM = BM_, BN = BN_, PITCH = 4 * BN + 16, BYTES = BM * PITCH;
    SharedAddress room;
    __device__ __forceinline__ void lay(int row, int column, float x) const { store_shared(room + row * PITCH + 4 * column, x); }

    template <int GRANULE, int THREADS, class Storage>
    __device__ __forceinline__ void store(Storage *c, long long n, int rows_left, int columns_left) const {
        constexpr int EACH = GRANULE / sizeof(Storage), BESIDE = BN / EACH, AT_ONCE = THREADS / BESIDE;
        const int row = thread_index() / BESIDE, column = thread_index() % BESIDE * EACH;
        const int left = column < columns_left ? rows_left - row : 0;
        SharedAddress from = room + row * PITCH + 4 * column;
        c += row * n + column;
#pragma unroll
        for (int i = 0; i < BM; i += AT_ONCE, c += AT_ONCE * n) {
            if (i >= left) break;
            float x[EACH];
            if constexpr (EACH == 4) {
                load_shared_16(x, from + i * PITCH);
            } else {
#pragma unroll
                for (int e = 0; e < EACH; e++) x[e] = load_shared_float(from + i * PITCH + 4 * e);
            }
            store_piece(c, x);
        }
    }
};

// Shared memory: what a step takes or the tile of C, whichever is more.
template <class Tile>
__device__ __forceinline__ void many_matmul(const typename Tile::Storage *a, const typename Tile::Storage *b, typename Tile::Storage *c,
                                            long long m, long long k, long long n) {
    using Storage = typename Tile::Storage;
    constexpr int BM = Tile::BM, BN = Tile::BN, BK = Tile::BK, GRANULE = Tile::GRANULE, THREADS = Tile::THREADS;
    const unsigned beside = static_cast<unsigned>((n + BN - 1) / BN), block = block_index();
    const long long row0 = static_cast<long long>(block / beside) * BM, column0 = static_cast<long long>(block % beside) * BN;
    const int rows_left = least(m - row0, BM), columns_left = least(n - column0, BN);
    const SharedAddress tile_a = shared_base(), tile_b = tile_a + BM * Tile::PITCH_A;
    a += row0 * k, b += column0, c += row0 * n + column0;
    Tile tile;
#pragma unroll 1
    for (long long left = k; left > 0; left -= BK, a += BK, b += BK * n) {
        const int depth = least(left, BK);
        copy_step<Storage, BM, BK, GRANULE, THREADS, Tile::PITCH_A>(tile_a, a, k, rows_left, depth);
        copy_step<Storage, BK, BN, GRANULE, THREADS, Tile::PITCH_B>(tile_b, b, n, depth, columns_left);
        copies_commit();
        copies_wait<0>();
        block_barrier();
        tile.multiply(tile_a, tile_b, depth);
        block_barrier();
    }
    const Laid<BM, BN> laid{tile_a};
    tile.lay(laid);
    block_barrier();
    laid.template store<GRANULE, THREADS>(c, n, rows_left, columns_left);
}
