// C = A B by float32 fused multiply-adds: float32 without TF32, and 16-bit data on GPUs without tensor cores for it.
//
// A block computes BM x BN, a thread TM rows x TN columns. A is row-major in shared memory, too, so that cp.async can copy it. A thread
// reads 4 k of a row at once, TM reads per 4 k, as many as with a transposed A. Per 4 k a thread with 8x8 elements does 256 FMAs for 16
// reads of 16 bytes. The 8 lanes of a row read the same address of A, 4 rows the same of B.
#pragma once
#include "matmul/common/cluster_reduce.cuh"
#include "matmul/kernels/tile.cuh"

// Threads of a warp: 4 rows x 8 columns, or 8 x 4. SLICES > 1: that many groups of TX x TY threads take different parts of every step of K.
// A_T, B_T: the factor is the transpose of a row-major matrix, in global and in shared memory.
template <class Storage_, int TX_, int TY_, int TM_, int TN_, int BK_, int SLICES_, int STAGES_, int GRANULE_, bool A_T_ = false,
          bool B_T_ = false>
struct SimtTile {
    using Storage = Storage_;
    static constexpr int TX = TX_, TY = TY_, TM = TM_, TN = TN_, BK = BK_, SLICES = SLICES_, STAGES = STAGES_, GRANULE = GRANULE_;
    static constexpr bool A_T = A_T_, B_T = B_T_;
    static constexpr int BM = TY * TM, BN = TX * TN, SIZE = sizeof(Storage), THREADS = TX * TY * SLICES, SLICE_K = BK / SLICES;
    static constexpr int BYTES_A = BM * BK * SIZE, STAGE_BYTES = BYTES_A + BK * BN * SIZE;
    static constexpr int WX = TX < 8 ? TX : 8, WY = 32 / WX;
    using LayoutA = ByRow<(A_T ? BM : BK) * SIZE>;
    using LayoutB = typename Either<B_T, ByRowFours<BK * SIZE>, ByRow<BN * SIZE>>::type;
    using CopyA = TileCopy<Storage, A_T ? BK : BM, A_T ? BM : BK, GRANULE, THREADS, LayoutA>;
    using CopyB = TileCopy<Storage, B_T ? BN : BK, B_T ? BK : BN, GRANULE, THREADS, LayoutB>;
    // The r-th row of thread row y; for a transposed A rows are in groups of 4.
    __device__ __forceinline__ static int row(int y, int r) { return A_T ? (y + r / 4 * TY) * 4 + r % 4 : y + r * TY; }
    static_assert((WX == 4 || WX == 8) && TX % WX == 0 && TY % WY == 0 && TX * TY % 32 == 0 && TN % 4 == 0 && SLICE_K % 4 == 0, "whole warps");
    static_assert((SLICES - 1) * BM * BN * 4 <= STAGES * STAGE_BYTES, "partial sums fit in the ring");
};

// Four neighbouring elements as float32.
template <class Storage> __device__ __forceinline__ void load_four(float (&x)[4], SharedAddress address) {
    if constexpr (sizeof(Storage) == 4) {
        const Words4 v = load_shared_16(address);
        x[0] = as_float(v.x), x[1] = as_float(v.y), x[2] = as_float(v.z), x[3] = as_float(v.w);
    } else {
        unsigned v[2];
        load_shared_8(address, v[0], v[1]);
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = to_float(Storage{static_cast<unsigned short>(v[i / 2] >> (16 * (i % 2)))});
    }
}

// One step of K: factors of 4 k at a time from shared memory. A thread's rows are TY apart and its columns in fours TX * 4 apart, so
// that the lanes of a warp read neighbouring rows of A and neighbouring chunks of B.
template <class Tile>
__device__ __forceinline__ void multiply_slot(float (&sums)[Tile::TM][Tile::TN], SharedAddress slot, int x, int y, int slice) {
#pragma unroll
    for (int i = 0; i < Tile::SLICE_K; i += 4) {
        const int k = slice * Tile::SLICE_K + i;
        float a[Tile::TM][4];
        if constexpr (Tile::A_T) {
#pragma unroll
            for (int r = 0; r < Tile::TM; r += 4) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float rows[4];
                    load_four<typename Tile::Storage>(rows, slot + Tile::LayoutA::at(k + j, Tile::row(y, r) * Tile::SIZE));
#pragma unroll
                    for (int next = 0; next < 4; next++) a[r + next][j] = rows[next];
                }
            }
        } else {
#pragma unroll
            for (int r = 0; r < Tile::TM; r++) {
                load_four<typename Tile::Storage>(a[r], slot + Tile::LayoutA::at(y + r * Tile::TY, k * Tile::SIZE));
            }
        }
        if constexpr (Tile::B_T) {
#pragma unroll
            for (int s = 0; s < Tile::TN; s++) {
                float b[4];
                const int column = (x + s / 4 * Tile::TX) * 4 + s % 4;
                load_four<typename Tile::Storage>(b, slot + Tile::BYTES_A + Tile::LayoutB::at(column, k * Tile::SIZE));
#pragma unroll
                for (int j = 0; j < 4; j++) {
#pragma unroll
                    for (int r = 0; r < Tile::TM; r++) sums[r][s] = fused(a[r][j], b[j], sums[r][s]);
                }
            }
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float b[Tile::TN / 4][4];
#pragma unroll
                for (int q = 0; q < Tile::TN / 4; q++) {
                    const int column = (x + q * Tile::TX) * 4;
                    load_four<typename Tile::Storage>(b[q], slot + Tile::BYTES_A + Tile::LayoutB::at(k + j, column * Tile::SIZE));
                }
#pragma unroll
                for (int r = 0; r < Tile::TM; r++) {
#pragma unroll
                    for (int s = 0; s < Tile::TN; s++) sums[r][s] = fused(a[r][j], b[s / 4][s % 4], sums[r][s]);
                }
            }
        }
    }
}

// Adds the slices' partial sums in a fixed order; slice 0 holds the result.
template <class Tile> __device__ __forceinline__ void add_slices(float (&sums)[Tile::TM][Tile::TN], int slice) {
    constexpr int SHARING = Tile::TX * Tile::TY;
    const SharedAddress mine = shared_base() + 4 * (thread_index() % SHARING);
    block_barrier();  // the ring is about to be overwritten: every thread has read its last factors
    if (slice > 0) {
#pragma unroll
        for (int i = 0; i < Tile::TM * Tile::TN; i++) {
            store_shared(mine + 4 * SHARING * ((slice - 1) * Tile::TM * Tile::TN + i), sums[i / Tile::TN][i % Tile::TN]);
        }
    }
    block_barrier();
    if (slice > 0) return;
    for (int other = 0; other < Tile::SLICES - 1; other++) {
#pragma unroll
        for (int i = 0; i < Tile::TM * Tile::TN; i++) {
            float &s = sums[i / Tile::TN][i % Tile::TN];
            s = sum(s, load_shared_float(mine + 4 * SHARING * (other * Tile::TM * Tile::TN + i)));
        }
    }
}

// S > 1: split-K; the S blocks of a cluster have the same tile.
template <class Tile, int S = 1>
__device__ __forceinline__ void simt_matmul(const typename Tile::Storage *a, const typename Tile::Storage *b, typename Tile::Storage *c,
                                            long long m, long long k, long long n) {
    const TilePosition tile = tile_position<Tile::BM, Tile::BN>(m, n, block_index() / S);
    const long long row0 = static_cast<long long>(tile.m) * Tile::BM, column0 = static_cast<long long>(tile.n) * Tile::BN;
    const int rows_left = least(m - row0, Tile::BM), columns_left = least(n - column0, Tile::BN);
    const Steps part_of_k = steps_of_block<S>(static_cast<int>((k + Tile::BK - 1) / Tile::BK));
    const int steps = part_of_k.last - part_of_k.first;
    const int thread = thread_index() % (Tile::TX * Tile::TY), slice = thread_index() / (Tile::TX * Tile::TY);
    const int warp = thread / 32, lane = thread % 32;
    const int x = warp % (Tile::TX / Tile::WX) * Tile::WX + lane % Tile::WX, y = warp / (Tile::TX / Tile::WX) * Tile::WY + lane / Tile::WX;
    const SharedAddress ring = shared_base();

    typename Tile::CopyA copy_a;
    typename Tile::CopyB copy_b;
    const long long before = static_cast<long long>(part_of_k.first) * Tile::BK;
    const long long pitch_a = Tile::A_T ? m : k, pitch_b = Tile::B_T ? k : n;
    // Of the step to fetch next.
    const typename Tile::Storage *next_a = a + (Tile::A_T ? row0 : row0 * k) + (Tile::A_T ? before * m : before);
    const typename Tile::Storage *next_b = b + (Tile::B_T ? column0 * k : column0) + (Tile::B_T ? before : before * n);
    long long k_left = k - before;
    const auto fetch = [&](int slot) {
        const SharedAddress to = ring + slot * Tile::STAGE_BYTES;
        const int depth = least(k_left, Tile::BK);
        copy_a.fetch(to, next_a, pitch_a, Tile::A_T ? depth : rows_left, Tile::A_T ? rows_left : depth);
        copy_b.fetch(to + Tile::BYTES_A, next_b, pitch_b, Tile::B_T ? columns_left : depth, Tile::B_T ? depth : columns_left);
        copy_a.deposit(to);
        copy_b.deposit(to + Tile::BYTES_A);
        next_a += Tile::A_T ? Tile::BK * m : Tile::BK, next_b += Tile::B_T ? Tile::BK : Tile::BK * n, k_left -= Tile::BK;
    };
    for (int step = 0; step < Tile::STAGES - 1; step++) {
        if (step < steps) fetch(step);
        copies_commit();  // a group a step, even an empty one: the count of groups then says which step has landed
    }

    float sums[Tile::TM][Tile::TN] = {};
    int slot = 0, free_slot = Tile::STAGES - 1;
    for (int step = 0; step < steps; step++) {
        copies_wait<Tile::STAGES - 2>();
        block_barrier();  // this step has landed for every thread, and the last step's slot is read no more
        if (step + Tile::STAGES - 1 < steps) fetch(free_slot);
        copies_commit();
        multiply_slot<Tile>(sums, ring + slot * Tile::STAGE_BYTES, x, y, slice);
        free_slot = slot;
        slot = slot + 1 == Tile::STAGES ? 0 : slot + 1;
    }

    if constexpr (Tile::SLICES > 1) add_slices<Tile>(sums, slice);
    if constexpr (S > 1) {
        constexpr int PARTS = (Tile::SLICES - 1) * Tile::BM * Tile::BN * 4;  // of slices, which may still be read
        const ClusterReduce<S, Tile::BM, Tile::BN, Tile::THREADS> reduce(ring + PARTS);
        static_assert(PARTS + reduce.BYTES <= Tile::STAGES * Tile::STAGE_BYTES, "the sums fit in the ring");
        if constexpr (Tile::SLICES == 1) block_barrier();  // every thread has read its last factors
        if (slice == 0) {
#pragma unroll
            for (int r = 0; r < Tile::TM; r++) {
#pragma unroll
                for (int s = 0; s < Tile::TN; s++) reduce.write_partial(y + r * Tile::TY, (x + s / 4 * Tile::TX) * 4 + s % 4, sums[r][s]);
            }
        }
        reduce.store(c + row0 * n + column0, n, rows_left, columns_left);
        return;
    }
    if (slice > 0) return;
#pragma unroll
    for (int r = 0; r < Tile::TM; r++) {
        const int row = Tile::row(y, r);
        if (row >= rows_left) break;
#pragma unroll
        for (int q = 0; q < Tile::TN / 4; q++) {
            const int column = (x + q * Tile::TX) * 4;
            typename Tile::Storage *to = c + (row0 + row) * n + column0 + column;
            if constexpr (sizeof(typename Tile::Storage) == 4) {
                const float *s = &sums[r][4 * q];
                const Words4 v{bits_of(s[0]), bits_of(s[1]), bits_of(s[2]), bits_of(s[3])};
                store_row<Tile::GRANULE == 16>(to, v, columns_left - column);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if (column + i < columns_left) from_float(sums[r][4 * q + i], to[i]);
                }
            }
        }
    }
}
