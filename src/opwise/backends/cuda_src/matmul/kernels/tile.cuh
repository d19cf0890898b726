// Tiles of a row-major matrix: the copy to shared memory, and the order of C's tiles.
#pragma once
#include "matmul/common/swizzle.cuh"

// Copies a ROWS x COLUMNS tile in granules of GRANULE bytes. A granule is the greatest power of two (up to 16) that divides the row
// pitch and the base addresses in bytes; it therefore lies wholly inside the matrix or wholly outside, where zeros are written.
// Neighbouring threads take neighbouring granules of a row.
template <class Storage, int ROWS, int COLUMNS, int GRANULE, int THREADS, class Layout> struct TileCopy {
    static constexpr int ELEMENTS = GRANULE / sizeof(Storage);
    static constexpr int PER_ROW = COLUMNS / ELEMENTS;
    static_assert(PER_ROW <= THREADS && THREADS % PER_ROW == 0, "a pass covers whole rows");
    static constexpr int ROWS_A_PASS = THREADS / PER_ROW;
    static constexpr int PASSES = (ROWS + ROWS_A_PASS - 1) / ROWS_A_PASS;
    static constexpr bool STAGED = GRANULE < 4;  // cp.async copies 4 bytes at least: smaller granules pass through registers

    unsigned short held[STAGED ? PASSES : 1];

    // Asynchronous: issues the copies into `slot`. Staged: issues the loads; `deposit` writes them to `slot` later.
    __device__ __forceinline__ void fetch(SharedAddress slot, const Storage *tile, long long pitch, int rows_left, int columns_left) {
        const int first = thread_index() / PER_ROW, column = thread_index() % PER_ROW * ELEMENTS;
        const Storage *source = tile + first * pitch + column;
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            const int row = first + pass * ROWS_A_PASS;
            const bool valid = row < rows_left && column < columns_left;
            if constexpr (STAGED) {
                held[pass] = load_global_2(source, valid);
            } else if (ROWS % ROWS_A_PASS == 0 || row < ROWS) {
                copy_async<GRANULE>(slot + Layout::at(row, column * sizeof(Storage)), valid ? source : tile, valid);
            }
            source = opaque(source + ROWS_A_PASS * pitch);
        }
    }

    __device__ __forceinline__ void deposit(SharedAddress slot) const {
        if constexpr (STAGED) {
            const int first = thread_index() / PER_ROW, column = thread_index() % PER_ROW * ELEMENTS;
#pragma unroll
            for (int pass = 0; pass < PASSES; pass++) {
                const int row = first + pass * ROWS_A_PASS;
                if (ROWS % ROWS_A_PASS == 0 || row < ROWS) store_shared(slot + Layout::at(row, column * sizeof(Storage)), held[pass]);
            }
        }
    }
};

// Blocks that run at the same time compute a nearly square part of C, GROUP tiles high, so that they share rows of A and columns of B in
// L2. GROUP * tiles_n is at most the number of blocks where it is used, so nothing exceeds 2^31.
struct TilePosition {
    unsigned m, n;
};
template <int BM, int BN, unsigned GROUP = 16>
__device__ __forceinline__ TilePosition tile_position(long long m, long long n, unsigned block = block_index()) {
    const unsigned tiles_m = static_cast<unsigned>((m + BM - 1) / BM), tiles_n = static_cast<unsigned>((n + BN - 1) / BN);
    if (tiles_m <= GROUP) return {block % tiles_m, block / tiles_m};
    const unsigned group = block / (GROUP * tiles_n), within = block % (GROUP * tiles_n);
    const unsigned rows = min(tiles_m - group * GROUP, GROUP);
    return {group * GROUP + within % rows, within / rows};
}

// Stores 16 bytes of a row of C, of which `left` elements (none if negative) are inside: all or nothing if rows are aligned to 16 bytes,
// else element by element.
template <bool ALIGNED, class Storage> __device__ __forceinline__ void store_row(Storage *to, const Words4 &words, int left) {
    constexpr int COUNT = 16 / sizeof(Storage);
    if constexpr (ALIGNED) {
        if (left > 0) *reinterpret_cast<Words4 *>(to) = words;
        return;
    }
    const unsigned parts[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        if (i >= left) break;
        if constexpr (sizeof(Storage) == 4)
            to[i] = as_float(parts[i]);
        else
            to[i].bits = static_cast<unsigned short>(parts[i / 2] >> (16 * (i % 2)));
    }
}
