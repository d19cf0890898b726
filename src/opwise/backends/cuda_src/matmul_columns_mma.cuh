// C = A B in 16 bits where B has few columns: A is read once, and that is the time. As matmul_columns.cuh, by mma.sync: multiply-adds of so
// many columns would take longer than the memory.
//
// A warp has 16 HIGH rows of A. The order of K within a sum is free: a lane takes 16 bytes of a row, eight elements that follow one another,
// which are its share of two instructions' K; four lanes 64 bytes of it, rows 8 t to 8 t + 7 of 32 of B for lane t of them. SHARING warps of
// a block share K, by turns; their sums meet in shared memory, in a fixed order.
#pragma once
#include "elements.cuh"
#include "matmul_tile.cuh"

// MOST: columns of B at most, a multiple of 8. GRANULE: bytes of an access of B. 16: it has MOST columns. GRANULE_A: of an access of A.
template <class Storage_, int MOST_, int HIGH_, int SHARING_, int GRANULE, int GRANULE_A_ = 16> struct ColumnsMmaTile {
    using Storage = Storage_;
    static constexpr int MOST = MOST_, EIGHTS = MOST / 8, HIGH = HIGH_, SHARING = SHARING_, THREADS = 256, WARPS = THREADS / 32;
    static constexpr int ROWS = 16 * HIGH, BLOCK_ROWS = ROWS * WARPS / SHARING;
    static constexpr int GRANULE_A = GRANULE_A_;
    static constexpr bool EVEN = GRANULE == 16;
    static constexpr int STEPS = EIGHTS < 3 ? 4 / HIGH : EVEN ? 2 : 1;  // of 32 of K, under way at once, as registers allow
};

// Elements of a lane's eight of K, from there on, that lie before its end: all or none, where rows begin on 16 bytes.
template <class Tile> __device__ __forceinline__ int eight_left(long long from, long long k) {
    if constexpr (Tile::GRANULE_A == 16)
        return from < k ? 8 : 0;
    else
        return least(k - from, 8);
}

// Of B 32 rows a step, for one warp.
template <class Tile, bool EVEN = Tile::EVEN> struct RowsOfB;

// They lie one behind the other, in pieces of 16 bytes: through shared memory, where ldmatrix turns them.
template <class Tile> struct RowsOfB<Tile, true> {
    static constexpr int EIGHTS = Tile::EIGHTS, STEPS = Tile::STEPS, ROOM = STEPS * EIGHTS * 512;
    const uint4 *from;
    long long pieces;   // of 16 bytes, all of B
    SharedAddress room;
    int lane;
    uint4 raw[STEPS][EIGHTS];

    // Eight rows from 8 t on, and of any j the rows 8 t + 2 j and 8 t + 2 j + 1 for all t, lie in different banks.
    __device__ __forceinline__ static unsigned at(int row, int eight) { return eight * 512 + 16 * (row ^ row / 8 * 2 ^ eight * (8 / EIGHTS)); }
    __device__ __forceinline__ RowsOfB(const void *b, long long k, long long, int lane, int warp)
        : from(static_cast<const uint4 *>(b)), pieces(k * EIGHTS), room(shared_base() + warp * ROOM), lane(lane) {}
    __device__ __forceinline__ void fetch(int step, long long row) {
#pragma unroll
        for (int e = 0; e < EIGHTS; e++) {
            const long long piece = row * EIGHTS + 32 * e + lane;
            raw[step][e] = piece < pieces ? from[piece] : make_uint4(0, 0, 0, 0);
        }
    }
    __device__ __forceinline__ void landed() const {
        warp_barrier();  // what the last steps read
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
#pragma unroll
            for (int e = 0; e < EIGHTS; e++) {
                const int piece = 32 * e + lane;
                const uint4 &x = raw[s][e];
                store_shared_16(room + s * EIGHTS * 512 + at(piece / EIGHTS, piece % EIGHTS), {x.x, x.y, x.z, x.w});
            }
        }
        warp_barrier();
    }
    __device__ __forceinline__ void factors(unsigned (&pairs)[4], int step, long long, int eight) const {
        load_matrices_transposed(pairs, room + step * EIGHTS * 512 + at(lane % 8 / 2 * 8 + lane / 8 * 2 + lane % 2, eight));
    }
};

// However wide B is: element by element.
template <class Tile> struct RowsOfB<Tile, false> {
    static constexpr int ROOM = 0;
    const unsigned short *columns[Tile::EIGHTS];
    long long k;
    int width, t;

    __device__ __forceinline__ RowsOfB(const void *b, long long k, long long n, int lane, int) : k(k), width(static_cast<int>(n)), t(lane % 4) {
#pragma unroll
        for (int e = 0; e < Tile::EIGHTS; e++) columns[e] = static_cast<const unsigned short *>(b) + min(lane / 4 + 8 * e, width - 1);
    }
    __device__ __forceinline__ void fetch(int, long long) {}
    __device__ __forceinline__ void landed() const {}
    __device__ __forceinline__ void factors(unsigned (&pairs)[4], int, long long row, int eight) const {
        const int left = eight_left<Tile>(row + 8 * t, k);
        const unsigned short *at = columns[eight] + (left > 0 ? row + 8 * t : 0) * width;
#pragma unroll
        for (int j = 0; j < 4; j++, at += 2 * width) {
            const bool there = left > (Tile::GRANULE_A < 16 ? 2 * j : 0);
            pairs[j] = there ? at[0] | static_cast<unsigned>(at[width]) << 16 : 0;
        }
    }
};

// n <= MOST. A begins on GRANULE_A bytes, and so do its rows.
template <class Tile>
__device__ __forceinline__ void columns_mma_matmul(const typename Tile::Storage *a, const typename Tile::Storage *b, typename Tile::Storage *c,
                                                   long long m, long long k, long long n) {
    using Storage = typename Tile::Storage;
    constexpr int SHARING = Tile::SHARING, EIGHTS = Tile::EIGHTS, HIGH = Tile::HIGH, STEPS = Tile::STEPS;
    const int lane = thread_index() % 32, warp = thread_index() / 32, g = lane / 4, t = lane % 4, width = static_cast<int>(n);
    const long long row0 = static_cast<long long>(block_index()) * Tile::BLOCK_ROWS + warp / SHARING * Tile::ROWS;
    const Storage *rows[2 * HIGH];
#pragma unroll
    for (int r = 0; r < 2 * HIGH; r++) rows[r] = a + min(row0 + g + 8 * r, m - 1) * k + 8 * t;  // beyond A its last
    RowsOfB<Tile> from_b(b, k, n, lane, warp);
    float sums[HIGH][EIGHTS][4] = {};
#pragma unroll 1
    for (long long k0 = 32 * (warp % SHARING); k0 < k; k0 += 32 * SHARING * STEPS) {
        uint4 raw[STEPS][2 * HIGH];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const long long now = k0 + 32 * SHARING * s;
            const int left = eight_left<Tile>(now + 8 * t, k);
#pragma unroll
            for (int r = 0; r < 2 * HIGH; r++) raw[s][r] = piece_of_row<Tile::GRANULE_A>(rows[r] + now, 2 * left);
            from_b.fetch(s, now);
        }
        from_b.landed();
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            unsigned pairs[EIGHTS][4];
#pragma unroll
            for (int e = 0; e < EIGHTS; e++) from_b.factors(pairs[e], s, k0 + 32 * SHARING * s, e);
#pragma unroll
            for (int h = 0; h < HIGH; h++) {
                const uint4 &high = raw[s][2 * h], &low = raw[s][2 * h + 1];
                const unsigned first[4] = {high.x, low.x, high.y, low.y}, second[4] = {high.z, low.z, high.w, low.w};
#pragma unroll
                for (int e = 0; e < EIGHTS; e++) {
                    tensor_product(sums[h][e], first, {pairs[e][0], pairs[e][1]}, Storage{});
                    tensor_product(sums[h][e], second, {pairs[e][2], pairs[e][3]}, Storage{});
                }
            }
        }
    }
    constexpr int OWN = HIGH * EIGHTS * 4;
    if constexpr (SHARING > 1) {
        __shared__ float of_warps[Tile::WARPS][OWN][32];
#pragma unroll
        for (int i = 0; i < OWN; i++) of_warps[warp][i][lane] = sums[i / 4 / EIGHTS][i / 4 % EIGHTS][i % 4];
        block_barrier();
        if (warp % SHARING > 0) return;
#pragma unroll
        for (int w = 1; w < SHARING; w++) {
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                float &total = sums[i / 4 / EIGHTS][i / 4 % EIGHTS][i % 4];
                total = sum(total, of_warps[warp + w][i][lane]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const long long row = row0 + i / 4 / EIGHTS * 16 + i % 4 / 2 * 8 + g;
        const int column = i / 4 % EIGHTS * 8 + 2 * t + i % 2;
        if (row < m && column < width) from_float(sums[i / 4 / EIGHTS][i / 4 % EIGHTS][i % 4], c[row * n + column]);
    }
}
