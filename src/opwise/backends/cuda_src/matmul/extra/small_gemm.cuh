// C = A B where a product is small: it takes a launch and a wait for the memory, so all of a step of K is under way at once.
//
// A block computes a BM x BN tile. Each thread asks for its pieces of A and B, of GRANULE bytes, before it waits for the first of them; they
// wait in registers, the next ones while these are multiplied, and go through shared memory, whose rows are longer than a step, so that
// eight of them read together fall on all banks. No ring, no part of K for a warp of its own: nothing to add up.
#pragma once
#include "common/cluster_reduce.cuh"
#include "matmul/extra/small_gemm_sums.cuh"

// A step's ROWS x COLUMNS tile in the registers of THREADS threads; neighbours have neighbouring pieces of a row.
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

// S > 1: of the cluster's S blocks, each of which has the same tile and a part of K.
template <class Tile, int S = 1>
__device__ __forceinline__ void small_gemm_matmul(const typename Tile::Storage *a, const typename Tile::Storage *b, typename Tile::Storage *c,
                                            long long m, long long k, long long n) {
    using Storage = typename Tile::Storage;
    constexpr int BM = Tile::BM, BN = Tile::BN, BK = Tile::BK, UNIT = 64 / sizeof(Storage);  // of K, that is not shared
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
