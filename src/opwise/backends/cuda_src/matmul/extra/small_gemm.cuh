// C = A B for small products, whose time is a launch and one memory latency: all loads of a step of K are in flight at once.
//
// A block computes a BM x BN tile. Each thread loads its pieces of A and B, of GRANULE bytes, to registers, those of the next step while
// this one is multiplied, then writes them to shared memory. Rows there are padded, so that 8 rows read together use all banks. There is no
// ring, and warps do not share K.
#pragma once
#include "matmul/common/cluster_reduce.cuh"
#include "matmul/kernels/tile.cuh"

// Stores two neighbouring elements of a row of C, of which `left` are inside: by one store if rows are aligned to both.
template <int GRANULE, class Storage> __device__ __forceinline__ void store_two(Storage *to, float x, float y, int left) {
    if constexpr (GRANULE >= 2 * static_cast<int>(sizeof(Storage))) {
        if (left <= 0) return;
        if constexpr (sizeof(Storage) == 4)
            *reinterpret_cast<float2 *>(to) = make_float2(x, y);
        else
            *reinterpret_cast<unsigned *>(to) = pack<Storage>(x, y);
    } else {
        if (left > 0) from_float(x, to[0]);
        if (left > 1) from_float(y, to[1]);
    }
}

// By mma.sync: a warp has HIGH x WIDE instruction tiles of C. DEEP: an instruction's K.
template <class Storage_, int BM_, int BN_, int BK_, int WARPS_M_, int GRANULE_> struct SmallGemmTile {
    using Storage = Storage_;
    static constexpr int BM = BM_, BN = BN_, BK = BK_, GRANULE = GRANULE_, THREADS = 128, SIZE = sizeof(Storage);
    static constexpr int WARPS_M = WARPS_M_, WARPS_N = THREADS / 32 / WARPS_M;
    static constexpr int HIGH = BM / WARPS_M / 16, WIDE = BN / WARPS_N / 8, DEEP = 32 / SIZE;
    static constexpr int PITCH_A = BK * SIZE + 16, PITCH_B = BN * SIZE + (SIZE == 4 ? 32 : 16);
    static_assert(HIGH >= 1 && WIDE >= 1 && (WIDE == 1 || WIDE % 2 == 0 || SIZE == 4) && BK % (2 * DEEP) == 0, "whole fragments");

    float sums[HIGH][WIDE][4] = {};

    __device__ __forceinline__ static int row() { return thread_index() / 32 % WARPS_M * (16 * HIGH); }
    __device__ __forceinline__ static int column() { return thread_index() / 32 / WARPS_M * (8 * WIDE); }

    // B's fragments of two instructions' K, from k on, for all columns of a warp.
    __device__ __forceinline__ static void load_b(unsigned (&f)[2][WIDE][2], SharedAddress b, int k) {
        const int lane = thread_index() % 32;
        if constexpr (SIZE == 4) {
#pragma unroll
            for (int i = 0; i < 4 * WIDE; i++) {
                const int s = i / 2 % 2, half = i % 2, j = i / 4;
                const int row = k + 8 * s + 4 * half + lane % 4, at = column() + 8 * j + lane / 4;
                f[s][j][half] = as_factor<Storage>(bits_of(load_shared_float(b + row * PITCH_B + 4 * at)));
            }
        } else if constexpr (WIDE == 1) {
            unsigned four[4];
            load_matrices_transposed(four, b + (k + lane) * PITCH_B + 2 * column());
#pragma unroll
            for (int i = 0; i < 4; i++) f[i / 2][0][i % 2] = four[i];
        } else {
#pragma unroll
            for (int i = 0; i < WIDE; i++) {
                const int s = i % 2, j = i / 2 * 2;
                unsigned four[4];
                load_matrices_transposed(four, b + (k + 16 * s + lane % 16) * PITCH_B + 2 * (column() + 8 * j + lane / 16 * 8));
                f[s][j][0] = four[0], f[s][j][1] = four[1], f[s][j + 1][0] = four[2], f[s][j + 1][1] = four[3];
            }
        }
    }

    __device__ __forceinline__ void multiply(SharedAddress a, SharedAddress b, int depth) {
        const int lane = thread_index() % 32;
        a += (row() + lane % 16) * PITCH_A + lane / 16 * 16;
#pragma unroll
        for (int k = 0; k < BK; k += 2 * DEEP) {
            if (k >= depth) break;
            unsigned right[2][WIDE][2];
            load_b(right, b, k);
#pragma unroll
            for (int s = 0; s < 2; s++) {
#pragma unroll
                for (int r = 0; r < HIGH; r++) {
                    unsigned left[4];
                    load_matrices(left, a + 16 * r * PITCH_A + (k + s * DEEP) * SIZE);
#pragma unroll
                    for (int e = 0; e < 4; e++) left[e] = as_factor<Storage>(left[e]);
#pragma unroll
                    for (int j = 0; j < WIDE; j++) tensor_product(sums[r][j], left, right[s][j], Storage{});
                }
            }
        }
    }

    template <class Reduce> __device__ __forceinline__ void write_partial(const Reduce &reduce) const {
        const int lane = thread_index() % 32;
#pragma unroll
        for (int i = 0; i < HIGH * WIDE * 4; i++) {
            const int r = i / (4 * WIDE), j = i / 4 % WIDE, e = i % 4;
            reduce.write_partial(row() + 16 * r + e / 2 * 8 + lane / 4, column() + 8 * j + lane % 4 * 2 + e % 2, sums[r][j][e]);
        }
    }

    __device__ __forceinline__ void store(Storage *c, long long n, int rows_left, int columns_left) const {
        const int lane = thread_index() % 32;
#pragma unroll
        for (int r = 0; r < HIGH; r++) {
#pragma unroll
            for (int upper = 0; upper < 2; upper++) {
                const int at = row() + 16 * r + 8 * upper + lane / 4;
                if (at >= rows_left) break;
#pragma unroll
                for (int j = 0; j < WIDE; j++) {
                    const int beside = column() + 8 * j + lane % 4 * 2;
                    store_two<GRANULE>(c + at * n + beside, sums[r][j][2 * upper], sums[r][j][2 * upper + 1], columns_left - beside);
                }
            }
        }
    }
};

// float32 by fused multiply-adds: a thread has 4 columns of HIGH rows of C, which are AT_ONCE apart.
template <int BM_, int BN_, int BK_, int GRANULE_> struct SmallGemmFmaTile {
    using Storage = float;
    static constexpr int BM = BM_, BN = BN_, BK = BK_, GRANULE = GRANULE_, THREADS = 128;
    static constexpr int BESIDE = BN / 4, AT_ONCE = THREADS / BESIDE, HIGH = BM / AT_ONCE;
    static constexpr int PITCH_A = BK * 4 + 16, PITCH_B = BN * 4;
    static_assert(BM % AT_ONCE == 0 && BK % 4 == 0);

    float sums[HIGH][4] = {};

    __device__ __forceinline__ static int row() { return thread_index() / BESIDE; }
    __device__ __forceinline__ static int column() { return thread_index() % BESIDE * 4; }

    __device__ __forceinline__ void multiply(SharedAddress a, SharedAddress b, int depth) {
        a += row() * PITCH_A, b += 4 * column();
#pragma unroll 4
        for (int k = 0; k < depth; k += 4) {
            float left[HIGH][4];
#pragma unroll
            for (int r = 0; r < HIGH; r++) load_shared_16(left[r], a + r * AT_ONCE * PITCH_A + 4 * k);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float right[4];
                load_shared_16(right, b + (k + i) * PITCH_B);
#pragma unroll
                for (int r = 0; r < HIGH; r++) {
#pragma unroll
                    for (int j = 0; j < 4; j++) sums[r][j] = fused(left[r][i], right[j], sums[r][j]);
                }
            }
        }
    }

    template <class Reduce> __device__ __forceinline__ void write_partial(const Reduce &reduce) const {
#pragma unroll
        for (int i = 0; i < 4 * HIGH; i++) reduce.write_partial(row() + i / 4 * AT_ONCE, column() + i % 4, sums[i / 4][i % 4]);
    }

    __device__ __forceinline__ void store(float *c, long long n, int rows_left, int columns_left) const {
#pragma unroll
        for (int r = 0; r < HIGH; r++) {
            if (row() + r * AT_ONCE >= rows_left) break;
            float *to = c + (row() + r * AT_ONCE) * n + column();
            const Words4 words{bits_of(sums[r][0]), bits_of(sums[r][1]), bits_of(sums[r][2]), bits_of(sums[r][3])};
            store_row<GRANULE == 16>(to, words, columns_left - column());
        }
    }
};

// A step's ROWS x COLUMNS tile in the registers of THREADS threads; neighbouring threads have neighbouring pieces of a row.
template <class Storage, int ROWS, int COLUMNS, int GRANULE, int THREADS, int PITCH> struct PrefetchedTile {
    static constexpr int ELEMENTS = GRANULE / sizeof(Storage), BESIDE = COLUMNS / ELEMENTS, AT_ONCE = THREADS / BESIDE;
    static constexpr int PASSES = (ROWS + AT_ONCE - 1) / AT_ONCE, WORDS = GRANULE < 4 ? 1 : GRANULE / 4;
    static_assert(THREADS % BESIDE == 0, "a pass covers whole rows");
    unsigned held[PASSES][WORDS];

    __device__ __forceinline__ static int row() { return thread_index() / BESIDE; }
    __device__ __forceinline__ static int column() { return thread_index() % BESIDE * ELEMENTS; }

    __device__ __forceinline__ void fetch(const Storage *tile, long long pitch, int rows_left, int columns_left) {
        const Storage *from = tile + row() * pitch + column();
        const int left = column() < columns_left ? rows_left - row() : 0;
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++, from += AT_ONCE * pitch) {
            const bool valid = pass * AT_ONCE < left;
            if constexpr (GRANULE == 2)
                held[pass][0] = load_global_2(from, valid);
            else
                load_global_words<GRANULE>(held[pass], from, valid);
        }
    }

    __device__ __forceinline__ void deposit(SharedAddress to) const {
        to += row() * PITCH + column() * sizeof(Storage);
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            if (ROWS % AT_ONCE && pass * AT_ONCE + row() >= ROWS) break;
            const SharedAddress at = to + pass * AT_ONCE * PITCH;
            if constexpr (GRANULE == 2)
                store_shared(at, static_cast<unsigned short>(held[pass][0]));
            else
                store_shared_words<GRANULE>(at, held[pass]);
        }
    }
};

// S > 1: split-K; the S blocks of a cluster have the same tile.
template <class Tile, int S = 1>
__device__ __forceinline__ void small_gemm_matmul(const typename Tile::Storage *a, const typename Tile::Storage *b, typename Tile::Storage *c,
                                            long long m, long long k, long long n) {
    using Storage = typename Tile::Storage;
    constexpr int BM = Tile::BM, BN = Tile::BN, BK = Tile::BK, UNIT = 64 / sizeof(Storage);  // elements of K: a block's share is a multiple
    const unsigned beside = static_cast<unsigned>((n + BN - 1) / BN), block = block_index() / S;
    const long long row0 = static_cast<long long>(block / beside) * BM, column0 = static_cast<long long>(block % beside) * BN;
    const int rows_left = least(m - row0, BM), columns_left = least(n - column0, BN);
    const SharedAddress tile_a = shared_base(), tile_b = tile_a + BM * Tile::PITCH_A;
    const Steps part = steps_of_block<S>(static_cast<int>((k + UNIT - 1) / UNIT));
    const long long before = S > 1 ? part.first * UNIT : 0;
    int left = static_cast<int>((S > 1 ? min(static_cast<long long>(part.last * UNIT), k) : k) - before);
    a += row0 * k + before, b += before * n + column0, c += row0 * n + column0;
    PrefetchedTile<Storage, BM, BK, Tile::GRANULE, Tile::THREADS, Tile::PITCH_A> held_a;
    PrefetchedTile<Storage, BK, BN, Tile::GRANULE, Tile::THREADS, Tile::PITCH_B> held_b;
    Tile tile;
    const auto fetch = [&] {
        const int depth = min(left, BK);
        held_a.fetch(a, k, rows_left, depth);
        held_b.fetch(b, n, depth, columns_left);
        a += BK, b += BK * n;
    };
    fetch();
#pragma unroll 1
    while (true) {
        held_a.deposit(tile_a);
        held_b.deposit(tile_b);
        block_barrier();
        const int depth = min(left, BK);
        left -= BK;
        if (left > 0) fetch();
        tile.multiply(tile_a, tile_b, depth);
        if (left <= 0) break;
        block_barrier();
    }
    if constexpr (S == 1) {
        tile.store(c, n, rows_left, columns_left);
    } else {
        const ClusterReduce<S, BM, BN, Tile::THREADS> reduce(shared_base());
        static_assert(reduce.BYTES <= BM * Tile::PITCH_A + BK * Tile::PITCH_B, "the sums fit where the factors were");
        block_barrier();  // every warp has read its last factors
        tile.write_partial(reduce);
        reduce.store(c, n, rows_left, columns_left);
    }
}
