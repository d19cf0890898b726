// C = A B in 16 bits or TF32 with at most 16 rows of A, by mma.sync. B is read once, at the bandwidth of memory.
//
// A warp loads B from global memory straight to its registers, without shared memory or a wait for other warps. The order of K in a sum and
// of columns in a tile is free. A lane loads 16 bytes of a row of A, DEEP elements, its share of two instructions' K. Of each of the DEEP
// rows of B with the same k it loads GRANULE bytes, one column of each of several 8-column tiles; 8 lanes load neighbouring bytes.
// The warps, and the S blocks of a cluster, take alternate steps of K. Their sums are added in shared memory, in a fixed order.
#pragma once
#include "matmul/common/cluster_reduce.cuh"
#include "matmul/kernels/tile.cuh"

// BN: columns of B. GRANULE: bytes of a load of B; B, C and their rows are aligned to it. A's are aligned to 16, or 8 for 16-bit types.
template <class Storage_, int BN_, int WARPS_, int TURNS_, int GRANULE_> struct SkinnyMTile {
    using Storage = Storage_;
    static constexpr int BM = 16, BN = BN_, WARPS = WARPS_, THREADS = 32 * WARPS, GRANULE = GRANULE_, TURNS = TURNS_;
    static constexpr int DEEP = 16 / sizeof(Storage), DEPTH = 4 * DEEP;  // elements of K in a step: of a lane, of a warp
    static constexpr int V = GRANULE / sizeof(Storage), ACROSS = BN / (8 * V), EIGHTS = V * ACROSS, WORDS = GRANULE / 4;
    static constexpr int OWN = 4 * EIGHTS, EACH = OWN / WARPS;  // sums of a lane: in its warp, and of those that it adds up
    static constexpr int TOTALS = WARPS * OWN * 128;            // bytes of shared memory before these, which other blocks read
    static_assert(ACROSS >= 1 && OWN % WARPS == 0 && (EACH % V == 0 || V % EACH == 0));
};

// A lane's part of a step: rows g and g + 8 of A, DEEP rows of B.
template <class Tile> struct StepOfFew {
    uint4 a[2];
    unsigned b[Tile::DEEP][Tile::ACROSS][Tile::WORDS];
};

// A register of one instruction's B, for column v of a load: rows 2 i and 2 i + 1 in 16 bits, row i in TF32.
template <class Tile> __device__ __forceinline__ unsigned factor_of_b(const StepOfFew<Tile> &step, int i, int across, int v) {
    if constexpr (sizeof(typename Tile::Storage) == 4) {
        return round_to_tf32(step.b[i][across][v]);
    } else {
        return pick_halves(step.b[2 * i][across][v / 2], step.b[2 * i + 1][across][v / 2], v % 2 ? 0x7632 : 0x5410);
    }
}

template <class Tile>
__device__ __forceinline__ void multiply_few(float (&sums)[Tile::EIGHTS][4], const StepOfFew<Tile> &step) {
    using Storage = typename Tile::Storage;
#pragma unroll
    for (int s = 0; s < Tile::DEEP * static_cast<int>(sizeof(Storage)) / 8; s++) {
        const uint4 &high = step.a[0], &low = step.a[1];
        const unsigned a[4] = {as_factor<Storage>(s ? high.z : high.x), as_factor<Storage>(s ? low.z : low.x),
                               as_factor<Storage>(s ? high.w : high.y), as_factor<Storage>(s ? low.w : low.y)};
#pragma unroll
        for (int e = 0; e < Tile::EIGHTS; e++) {
            const int across = e / Tile::V, v = e % Tile::V;
            const unsigned b[2] = {factor_of_b(step, 2 * s, across, v), factor_of_b(step, 2 * s + 1, across, v)};
            tensor_product(sums[e], a, b, Storage{});
        }
    }
}

// m <= 16. S: split-K over the blocks of a cluster.
template <class Tile, int S = 1>
__device__ __forceinline__ void skinny_m_matmul(const typename Tile::Storage *a, const typename Tile::Storage *b, typename Tile::Storage *c,
                                           long long m, long long k, long long n) {
    using Storage = typename Tile::Storage;
    constexpr int V = Tile::V, DEEP = Tile::DEEP, ACROSS = Tile::ACROSS, WARPS = Tile::WARPS, OWN = Tile::OWN, EACH = Tile::EACH;
    constexpr int FURTHER = WARPS * S * Tile::DEPTH;
    constexpr int GRANULE_A = Tile::GRANULE < 16 && sizeof(Storage) == 2 ? Tile::GRANULE : 16;
    constexpr int TOGETHER = GRANULE_A / sizeof(Storage);  // elements of K that are either all before its end or all beyond
    const int lane = thread_index() % 32, warp = thread_index() / 32, g = lane / 4, t = lane % 4;
    const int first = warp * S + (S > 1 ? static_cast<int>(rank_in_cluster()) : 0);
    const long long column0 = static_cast<long long>(block_index() / S) * Tile::BN;
    int depth = first * Tile::DEPTH + t * DEEP;  // of this lane's K
    const Storage *from_a = a + g * k + depth, *from_b = b + depth * n + column0 + g * V;
    bool inside[ACROSS];
#pragma unroll
    for (int j = 0; j < ACROSS; j++) inside[j] = column0 + j * 8 * V + g * V < n;
    StepOfFew<Tile> turns[Tile::TURNS];
    const auto fetch = [&](StepOfFew<Tile> &to) {
        const Storage *row_of_b = from_b;
#pragma unroll
        for (int i = 0; i < DEEP; i++) {
            const bool there = depth + i / TOGETHER * TOGETHER < k;
#pragma unroll
            for (int j = 0; j < ACROSS; j++) load_global_words<Tile::GRANULE>(to.b[i][j], row_of_b + j * 8 * V, there && inside[j]);
            row_of_b = opaque(row_of_b + n);
        }
        const int left = least(k - depth, DEEP) * static_cast<int>(sizeof(Storage));
#pragma unroll
        for (int r = 0; r < 2; r++) to.a[r] = piece_of_row<GRANULE_A>(from_a + r * 8 * k, g + 8 * r < m ? left : 0);
        depth += FURTHER, from_a += FURTHER, from_b += FURTHER * n;
    };
    float sums[Tile::EIGHTS][4] = {};
    const int steps = static_cast<int>((k + Tile::DEPTH - 1) / Tile::DEPTH);
    const int left = steps > first ? (steps - first + WARPS * S - 1) / (WARPS * S) : 0;
#pragma unroll
    for (int turn = 0; turn < Tile::TURNS; turn++)
        if (turn < left) fetch(turns[turn]);
#pragma unroll 1
    for (int step = 0; step < left; step += Tile::TURNS) {
#pragma unroll
        for (int turn = 0; turn < Tile::TURNS; turn++) {
            if (step + turn >= left) break;
            multiply_few(sums, turns[turn]);
            if (step + turn + Tile::TURNS < left) fetch(turns[turn]);
        }
    }
    const SharedAddress room = shared_base();
#pragma unroll
    for (int i = 0; i < OWN; i++) store_shared(room + ((warp * OWN + i) * 32 + lane) * 4, sums[i % Tile::EIGHTS][i / Tile::EIGHTS]);
    block_barrier();
    float totals[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const SharedAddress mine = room + ((warp * EACH + i) * 32 + lane) * 4;
        totals[i] = load_shared_float(mine);
#pragma unroll
        for (int w = 1; w < WARPS; w++) totals[i] = sum(totals[i], load_shared_float(mine + w * OWN * 128));
    }
    // The row and column in the tile of a sum, by its number.
    const auto row_of = [&](int number) { return g + number / Tile::EIGHTS / 2 * 8; };
    const auto column_of = [&](int number) {
        const int eighth = 2 * t + number / Tile::EIGHTS % 2;
        return number / V % ACROSS * 8 * V + eighth * V + number % V;
    };
    if constexpr (S == 1) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int row = row_of(warp * EACH + i);
            const long long column = column0 + column_of(warp * EACH + i);
            if (row < m && column < n) from_float(totals[i], c[row * n + column]);
        }
    } else {
        const ClusterReduce<S, Tile::BM, Tile::BN, Tile::THREADS> reduce(room + Tile::TOTALS);
#pragma unroll
        for (int i = 0; i < EACH; i++) reduce.write_partial(row_of(warp * EACH + i), column_of(warp * EACH + i), totals[i]);
        reduce.store(c + column0, n, static_cast<int>(m), least(n - column0, Tile::BN));
    }
}
