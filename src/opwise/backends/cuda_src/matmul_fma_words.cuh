// C = A B with plain float32 fused multiply-adds where rows begin anywhere: copied word by word, with few instructions beside.
//
// A block has one tile. A warp multiplies 4 TM rows by 8 TN columns; a thread's rows are 4 apart, its columns in fours 32 apart. A lies by
// rows of 32 k in lines of 33 words, so that the four rows that a warp reads at a time are in different banks; B lies as it is. A turn of
// the loop is 8 k, in which a quarter of a step is copied, too, into the slot that the step before has left.
#pragma once
#include "matmul_tile.cuh"

template <int WARPS_M_, int WARPS_N_, int TM_, int TN_, int STAGES_> struct WordsTile {
    static constexpr int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, WARPS = WARPS_M * WARPS_N, TM = TM_, TN = TN_, STAGES = STAGES_;
    static constexpr int WM = 4 * TM, WN = 8 * TN, BM = WARPS_M * WM, BN = WARPS_N * WN, BK = 32, TURN = 8, TURNS = BK / TURN;
    static constexpr int THREADS = 32 * WARPS, LINE_A = BK * 4 + 4, LINE_B = BN * 4;
    static constexpr int COPIES_A = (BM + WARPS * TURNS - 1) / (WARPS * TURNS);  // of a turn, of a warp, which has a row of A at a time
    static constexpr int BYTES_A = COPIES_A * WARPS * TURNS * LINE_A, STAGE_BYTES = BYTES_A + BK * LINE_B;
    static constexpr int ROOM = WM * WN * 4;  // bytes of a warp's sums, in the ring
    static_assert(STAGES > 1 && BN == THREADS, "a thread has a column of B");
    static_assert(WARPS * ROOM <= STAGES * STAGE_BYTES, "the sums fit in the ring");
};

// What a block copies: its tile's steps. Rows that lie outside of C repeat its last one; columns and k outside are 0 and not read, which is
// quicker: copies of one word to many places go one after the other. A thread's places are 32 bits beside the tile's.
template <class Tile> struct WordCopies {
    const float *a, *b;
    const long long m, k, n;
    const SharedAddress ring;
    int step = 0, steps, slot = 0;
    const char *from_a, *from_b;
    unsigned line_a, line_b, places_a[Tile::COPIES_A * Tile::TURNS];
    bool inside;  // this thread's column

    __device__ __forceinline__ WordCopies(const float *a, const float *b, long long m, long long k, long long n, SharedAddress ring)
        : a(a), b(b), m(m), k(k), n(n), ring(ring), steps(static_cast<int>((k + Tile::BK - 1) / Tile::BK)),
          line_a(static_cast<unsigned>(k) * 4), line_b(static_cast<unsigned>(n) * 4) {
        const TilePosition at = tile_position<Tile::BM, Tile::BN>(m, n, block_index());
        const long long row = static_cast<long long>(at.m) * Tile::BM, column = static_cast<long long>(at.n) * Tile::BN;
        from_a = reinterpret_cast<const char *>(a + row * k), from_b = reinterpret_cast<const char *>(b + column);
        const int thread = thread_index(), last_row = least(m - row, Tile::BM) - 1;
        inside = thread < least(n - column, Tile::BN);
#pragma unroll
        for (int i = 0; i < Tile::COPIES_A * Tile::TURNS; i++)
            places_a[i] = min(thread / 32 + i * Tile::WARPS, last_row) * line_a + thread % 32 * 4;
    }
    __device__ __forceinline__ bool more() const { return step < steps; }
    // A part of the step that is next.
    __device__ __forceinline__ void part(int turn) const {
        const int thread = thread_index(), warp = thread / 32, lane = thread % 32;
        const SharedAddress to = ring + slot * Tile::STAGE_BYTES, to_a = to + warp * Tile::LINE_A + lane * 4;
        const char *step_a = from_a + static_cast<long long>(step) * (Tile::BK * 4);
        const int left = least(k - static_cast<long long>(step) * Tile::BK, Tile::BK);
#pragma unroll
        for (int t = 0; t < Tile::TURNS; t++) {  // places are registers, which have no index
            if (t != turn) continue;
#pragma unroll
            for (int j = 0; j < Tile::COPIES_A; j++) {
                const int i = t * Tile::COPIES_A + j;
                copy_async<4>(to_a + i * Tile::WARPS * Tile::LINE_A, step_a + places_a[i], lane < left);
            }
        }
        const char *line = from_b + (static_cast<long long>(step) * Tile::BK + turn * Tile::TURN) * line_b;
        const SharedAddress to_b = to + Tile::BYTES_A + turn * Tile::TURN * Tile::LINE_B + thread * 4;
#pragma unroll
        for (int j = 0; j < Tile::TURN; j++) {
            copy_async<4>(to_b + j * Tile::LINE_B, line + thread * 4u, inside && turn * Tile::TURN + j < left);
            line += line_b;
        }
    }
    // Behind the last part. A group a step, even an empty one: the count of groups then says which step has landed.
    __device__ __forceinline__ void next() {
        copies_commit();
        slot = slot + 1 == Tile::STAGES ? 0 : slot + 1;
        step++;
    }
};

template <class Tile>
__device__ __forceinline__ void words_matmul(const float *a, const float *b, float *c, long long m, long long k, long long n) {
    constexpr int TM = Tile::TM, TN = Tile::TN, STAGES = Tile::STAGES, WM = Tile::WM, WN = Tile::WN;
    const SharedAddress ring = shared_base();
    WordCopies<Tile> copies(a, b, m, k, n, ring);
    const int steps = copies.steps;
    for (int step = 0; step < STAGES - 1; step++) {
        if (copies.more()) {
            for (int turn = 0; turn < Tile::TURNS; turn++) copies.part(turn);
        }
        copies.next();
    }

    const int lane = thread_index() % 32, warp = thread_index() / 32, x = lane % 8, y = lane / 8;
    const int warp_row = warp / Tile::WARPS_N * WM, warp_column = warp % Tile::WARPS_N * WN;
    const SharedAddress mine_a = ring + (warp_row + y) * Tile::LINE_A, mine_b = ring + Tile::BYTES_A + (warp_column + x * 4) * 4;
    float of_a[TM], of_b[2][TN];
    SharedAddress slot_a = mine_a, slot_b = mine_b;
    const auto load_a = [&](int r, int k) { of_a[r] = load_shared_float(slot_a + k * 4 + r * 4 * Tile::LINE_A); };
    const auto load_b = [&](float(&to)[TN], int at) {
#pragma unroll
        for (int q = 0; q < TN / 4; q++) load_shared_16(to + 4 * q, slot_b + at * Tile::LINE_B + q * 128);
    };
    copies_wait<STAGES - 2>();
    block_barrier();
#pragma unroll
    for (int r = 0; r < TM; r++) load_a(r, 0);
    load_b(of_b[0], 0);
    const unsigned as_it_is = m < 0 ? 0 : 0x3210;
    int slot = 0;
    float sums[TM][TN] = {};
    for (int step = 0; step < steps; step++) {
        const bool copied = copies.more();
#pragma unroll 1
        for (int turn = 0; turn < Tile::TURNS; turn++) {
            if (copied) copies.part(turn);
#pragma unroll
            for (int i = 0; i < Tile::TURN; i++) {
                const int next = (turn * Tile::TURN + i + 1) % Tile::BK;
                if (i + 1 == Tile::TURN && turn + 1 == Tile::TURNS) {
                    copies.next();
                    copies_wait<STAGES - 2>();
                    block_barrier();  // the next step has landed for every thread, and this one's slot is read no more
                    // Behind the last step something is read again, and not used.
                    if (step + 1 < steps) slot = slot + 1 == STAGES ? 0 : slot + 1;
                    slot_a = mine_a + slot * Tile::STAGE_BYTES, slot_b = mine_b + slot * Tile::STAGE_BYTES;
                }
                load_b(of_b[(i + 1) % 2], next);
#pragma unroll
                for (int r = 0; r < TM; r++) {
#pragma unroll
                    for (int j = 0; j < TN; j++) {
                        const int s = r % 2 ? TN - 1 - j : j;
                        sums[r][s] = fused(of_a[r], of_b[i % 2][s], sums[r][s]);
                    }
                    load_a(r, next);
                }
            }
        }
    }

    // Sums leave row by row through the warp's room: neighbouring threads store neighbouring elements.
    const TilePosition tile = tile_position<Tile::BM, Tile::BN>(m, n, block_index());
    const long long row = static_cast<long long>(tile.m) * Tile::BM + warp_row;
    const long long column = static_cast<long long>(tile.n) * Tile::BN + warp_column;
    const int rows_left = least(m - row, WM), columns_left = least(n - column, WN);
    const SharedAddress room = ring + warp * Tile::ROOM;
    float *to = c + row * n + column + lane;
    block_barrier();  // which all have left
#pragma unroll
    for (int r = 0; r < TM; r++) {
#pragma unroll
        for (int q = 0; q < TN / 4; q++)
            store_shared_16(room + ((y + 4 * r) * WN + x * 4 + q * 32) * 4, apart(&sums[r][4 * q], as_it_is));
    }
    warp_barrier();
#pragma unroll 8
    for (int r = 0; r < WM; r++) {
#pragma unroll
        for (int q = 0; q < WN / 32; q++) {
            const float found = load_shared_float(room + (r * WN + q * 32 + lane) * 4);
            if (r < rows_left && lane + q * 32 < columns_left) to[q * 32] = found;
        }
        to += n;
    }
}
