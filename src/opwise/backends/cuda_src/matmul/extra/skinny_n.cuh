// C = A B in 16 bits or TF32 with few columns of B. A is read once, at the bandwidth of memory. As gemv_columns.cuh, but by mma.sync: FMAs
// for so many columns would be slower than memory.
//
// A warp has 16 HIGH rows of A. The order of K in a sum is free: a lane loads 16 bytes of a row, DEEP consecutive elements, its share of
// two instructions' K. Four lanes load 64 bytes of a row, and lane t uses the t-th DEEP rows of B. SHARING warps of a block, and the S
// blocks of a cluster, take alternate steps of K. Their sums are added in shared memory, in a fixed order.
#pragma once
#include "matmul/common/cluster_reduce.cuh"
#include "common/elements.cuh"
#include "matmul/kernels/tile.cuh"

// MOST: most columns of B, a multiple of 8. GRANULE: bytes of a load of B; 16 if B is 16-bit with exactly MOST columns. GRANULE_A: bytes of
// alignment of A's rows; 1: any, with A itself aligned to 16 bytes.
template <class Storage_, int MOST_, int HIGH_, int SHARING_, int GRANULE, int GRANULE_A_ = 16> struct SkinnyNTile {
    using Storage = Storage_;
    static constexpr int MOST = MOST_, EIGHTS = MOST / 8, HIGH = HIGH_, SHARING = SHARING_, THREADS = 256, WARPS = THREADS / 32;
    static constexpr int ROWS = 16 * HIGH, BLOCK_ROWS = ROWS * WARPS / SHARING;
    static constexpr int GRANULE_A = GRANULE_A_, DEEP = 16 / sizeof(Storage), DEPTH = 4 * DEEP;  // elements of K in a step: a lane's, a warp's
    static constexpr bool EVEN = GRANULE == 16;
    static constexpr int STEPS = GRANULE_A == 1 ? 1 : 4 / HIGH;  // whose loads are in flight, as registers allow
};

// How many of a lane's DEEP elements from `from` on are before the end of K: all or none if rows are aligned to 16 bytes.
template <class Tile> __device__ __forceinline__ int left_of_lane(long long from, long long k) {
    if constexpr (Tile::GRANULE_A == 16)
        return from < k ? Tile::DEEP : 0;
    else
        return least(k - from, Tile::DEEP);
}

// One row of A for one lane: 16 bytes per step.
template <class Tile, bool ANYWHERE = Tile::GRANULE_A == 1> struct RowOfA;

// Rows are aligned to GRANULE_A bytes.
template <class Tile> struct RowOfA<Tile, false> {
    using Storage = typename Tile::Storage;
    using Raw = uint4;
    const Storage *row;

    __device__ __forceinline__ void begin(const Storage *at, const Storage *) { row = at; }
    __device__ __forceinline__ Raw fetch(long long now, int left) const {
        return piece_of_row<Tile::GRANULE_A>(row + now, left * static_cast<int>(sizeof(Storage)));
    }
    __device__ __forceinline__ uint4 piece(const Raw &raw, int) const { return raw; }
};

// Unaligned rows of 16-bit elements: loads the two aligned 16-byte pieces that contain the lane's, and shifts.
template <class Tile> struct RowOfA<Tile, true> {
    using Storage = typename Tile::Storage;
    static_assert(sizeof(Storage) == 2);
    struct Raw {
        uint4 low, high;
    };
    const char *row, *end;  // the lane's first aligned piece; the end of A
    int behind;             // bytes from that piece to the row

    __device__ __forceinline__ void begin(const Storage *at, const Storage *a_end) {
        behind = static_cast<int>(reinterpret_cast<unsigned long long>(at) & 15);
        row = reinterpret_cast<const char *>(at) - behind, end = reinterpret_cast<const char *>(a_end);
    }
    __device__ __forceinline__ Raw fetch(long long now, int left) const {
        const char *from = row + 2 * now;
        const bool any = left > 0, more = behind + 2 * left > 16;
        if (end - from < 32) return cut_off(from);
        const uint4 *pieces = reinterpret_cast<const uint4 *>(from), none = make_uint4(0, 0, 0, 0);
        return {any ? pieces[0] : none, more ? pieces[1] : none};
    }
    // Near the end of A: by elements, four per turn, from the last. Not unrolled, since few rows come here.
    __device__ __forceinline__ Raw cut_off(const char *from) const {
        const auto at = [&](int i) { return from + 2 * i < end ? bits_of(*reinterpret_cast<const Storage *>(from + 2 * i)) : 0; };
        unsigned words[8] = {};
#pragma unroll 1
        for (int i = 12; i >= 0; i -= 4) {
#pragma unroll
            for (int w = 7; w > 1; w--) words[w] = words[w - 2];
            words[0] = at(i) | at(i + 1) << 16, words[1] = at(i + 2) | at(i + 3) << 16;
        }
        return {make_uint4(words[0], words[1], words[2], words[3]), make_uint4(words[4], words[5], words[6], words[7])};
    }
    __device__ __forceinline__ uint4 piece(const Raw &raw, int left) const {
        unsigned words[8] = {raw.low.x, raw.low.y, raw.low.z, raw.low.w, raw.high.x, raw.high.y, raw.high.z, raw.high.w};
#pragma unroll
        for (int i = 0; i < 6; i++) words[i] = behind & 8 ? words[i + 2] : words[i];
#pragma unroll
        for (int i = 0; i < 5; i++) words[i] = behind & 4 ? words[i + 1] : words[i];
        unsigned kept[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const unsigned word = down_by(words[i], words[i + 1], 8 * (behind & 2));
            const int before = left - 2 * i;  // elements that lie before K's end
            kept[i] = before <= 0 ? 0 : before == 1 ? word & 0xffffu : word;
        }
        return make_uint4(kept[0], kept[1], kept[2], kept[3]);
    }
};

// A step's rows of B, for one warp.
template <class Tile, bool EVEN = Tile::EVEN> struct RowsOfB;

// Rows are multiples of 16 bytes: through shared memory, from which ldmatrix transposes them.
template <class Tile> struct RowsOfB<Tile, true> {
    static constexpr int EIGHTS = Tile::EIGHTS, STEPS = Tile::STEPS, ROOM = STEPS * EIGHTS * 512;
    const uint4 *from;
    long long pieces;   // of 16 bytes, all of B
    SharedAddress room;
    int lane;
    uint4 raw[STEPS][EIGHTS];

    // Swizzled: 8 rows from 8 t on, and for each j the rows 8 t + 2 j and 8 t + 2 j + 1 of all t, are in different banks.
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
        warp_barrier();  // the previous steps have been read
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

// For any number of columns: element by element.
template <class Tile> struct RowsOfB<Tile, false> {
    static constexpr int ROOM = 0, DEEP = Tile::DEEP;
    using Storage = typename Tile::Storage;
    const Storage *columns[Tile::EIGHTS];
    long long k;
    int width, t;

    __device__ __forceinline__ RowsOfB(const void *b, long long k, long long n, int lane, int)
        : k(k), width(static_cast<int>(n)), t(lane % 4) {
#pragma unroll
        for (int e = 0; e < Tile::EIGHTS; e++) columns[e] = static_cast<const Storage *>(b) + min(lane / 4 + 8 * e, width - 1);
    }
    __device__ __forceinline__ void fetch(int, long long) {}
    __device__ __forceinline__ void landed() const {}
    __device__ __forceinline__ void factors(unsigned (&of_lane)[4], int, long long row, int eight) const {
        const int left = left_of_lane<Tile>(row + DEEP * t, k);
        const Storage *at = columns[eight] + (left > 0 ? row + DEEP * t : 0) * width;
#pragma unroll
        for (int j = 0; j < 4; j++, at += DEEP / 4 * width) {
            const bool there = left > (Tile::GRANULE_A < 16 ? DEEP / 4 * j : 0);
            if constexpr (DEEP == 4)
                of_lane[j] = there ? as_factor<Storage>(bits_of(at[0])) : 0;
            else
                of_lane[j] = (there ? bits_of(at[0]) : 0) | ((Tile::GRANULE_A > 1 ? there : left > 2 * j + 1) ? bits_of(at[width]) << 16 : 0);
        }
    }
};

// Adds the sums of the warps that share K, in the first of them.
template <class Tile> __device__ __forceinline__ void add_up_warps(float (&sums)[Tile::HIGH][Tile::EIGHTS][4], int warp, int lane) {
    constexpr int SHARING = Tile::SHARING, EIGHTS = Tile::EIGHTS, OWN = Tile::HIGH * EIGHTS * 4;
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

// n <= MOST. A's rows are aligned to GRANULE_A bytes. S: split-K over the blocks of a cluster.
template <class Tile, int S = 1>
__device__ __forceinline__ void skinny_n_matmul(const typename Tile::Storage *a, const typename Tile::Storage *b, typename Tile::Storage *c,
                                                   long long m, long long k, long long n) {
    using Storage = typename Tile::Storage;
    constexpr int SHARING = Tile::SHARING, EIGHTS = Tile::EIGHTS, HIGH = Tile::HIGH, STEPS = Tile::STEPS;
    constexpr int DEEP = Tile::DEEP, FURTHER = Tile::DEPTH * SHARING * S;
    const int lane = thread_index() % 32, warp = thread_index() / 32, g = lane / 4, t = lane % 4, width = static_cast<int>(n);
    const int first = warp % SHARING + (S > 1 ? SHARING * static_cast<int>(rank_in_cluster()) : 0);
    const long long block_row0 = static_cast<long long>(block_index() / S) * Tile::BLOCK_ROWS, row0 = block_row0 + warp / SHARING * Tile::ROWS;
    RowOfA<Tile> rows[2 * HIGH];
#pragma unroll
    for (int r = 0; r < 2 * HIGH; r++) rows[r].begin(a + min(row0 + g + 8 * r, m - 1) * k + DEEP * t, a + m * k);  // beyond A: the last
    RowsOfB<Tile> from_b(b, k, n, lane, warp);
    float sums[HIGH][EIGHTS][4] = {};
#pragma unroll 1
    for (long long k0 = Tile::DEPTH * first; k0 < k; k0 += FURTHER * STEPS) {
        typename RowOfA<Tile>::Raw raw[STEPS][2 * HIGH];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const long long now = k0 + FURTHER * s;
            const int left = left_of_lane<Tile>(now + DEEP * t, k);
#pragma unroll
            for (int r = 0; r < 2 * HIGH; r++) raw[s][r] = rows[r].fetch(now, left);
            from_b.fetch(s, now);
        }
        from_b.landed();
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const long long now = k0 + FURTHER * s;
            const int left = left_of_lane<Tile>(now + DEEP * t, k);
            unsigned of_b[EIGHTS][4];
#pragma unroll
            for (int e = 0; e < EIGHTS; e++) from_b.factors(of_b[e], s, now, e);
#pragma unroll
            for (int h = 0; h < HIGH; h++) {
                const uint4 high = rows[2 * h].piece(raw[s][2 * h], left), low = rows[2 * h + 1].piece(raw[s][2 * h + 1], left);
                const unsigned of_a[2][4] = {{high.x, low.x, high.y, low.y}, {high.z, low.z, high.w, low.w}};
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    unsigned factor[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) factor[i] = as_factor<Storage>(of_a[half][i]);
#pragma unroll
                    for (int e = 0; e < EIGHTS; e++) tensor_product(sums[h][e], factor, {of_b[e][2 * half], of_b[e][2 * half + 1]}, Storage{});
                }
            }
        }
    }
    if constexpr (SHARING > 1) add_up_warps<Tile>(sums, warp, lane);
    constexpr int OWN = HIGH * EIGHTS * 4;
    const bool owns = warp % SHARING == 0;
    const auto row_of = [&](int i) { return row0 + i / 4 / EIGHTS * 16 + i % 4 / 2 * 8 + g; };
    const auto column_of = [&](int i) { return i / 4 % EIGHTS * 8 + 2 * t + i % 2; };
    const auto total_of = [&](int i) { return sums[i / 4 / EIGHTS][i / 4 % EIGHTS][i % 4]; };
    if constexpr (S == 1) {
#pragma unroll
        for (int i = 0; i < OWN; i++)
            if (owns && row_of(i) < m && column_of(i) < width) from_float(total_of(i), c[row_of(i) * n + column_of(i)]);
    } else {
        const ClusterReduce<S, Tile::BLOCK_ROWS, Tile::MOST, Tile::THREADS> reduce(shared_base() + Tile::WARPS * RowsOfB<Tile>::ROOM);
        if (owns) {
#pragma unroll
            for (int i = 0; i < OWN; i++) reduce.write_partial(static_cast<int>(row_of(i) - block_row0), column_of(i), total_of(i));
        }
        reduce.store(c + block_row0 * n, n, least(m - block_row0, Tile::BLOCK_ROWS), width);
    }
}
