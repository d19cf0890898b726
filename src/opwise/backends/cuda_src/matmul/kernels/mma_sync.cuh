// C = A B on tensor cores by mma.sync (sm_80 and later): float16, bfloat16, and float32 rounded to TF32; all accumulate in float32.
//
// A block computes one BM x BN tile of C. A step of K has K_BYTES of a row of A; a ring of STAGES slots in shared memory holds the steps in
// flight. Per step a block loads (BM + BN) K_BYTES bytes, and each warp reads its factors from shared memory once per instruction's k. With
// 64x64 per warp and 16-bit data, k = 16 takes 4 KiB of shared memory reads (32 clocks) and 65536 multiply-adds.
#pragma once
#include "matmul/common/cluster_reduce.cuh"
#include "matmul/kernels/tile.cuh"

// The 32 columns of B that one call loads for 4 instructions, and what a lane then holds of C: 8 neighbouring columns of a row.
template <class Storage> struct Factors {  // 16-bit
    static constexpr int K = 16;
    template <int ROW_BYTES> using AlongColumns = ByRow<ROW_BYTES>;  // rows of K
    template <int ROW_BYTES> using OfColumns = ByRow<ROW_BYTES>;     // a row is a column of B

    __device__ __forceinline__ static void round(unsigned (&)[4]) {}
    __device__ __forceinline__ static int column(int t, int j, int odd) { return 8 * j + 2 * t + odd; }  // of lane t of 4, of instruction j

    // Instruction j has columns 8j .. 8j+7. ldmatrix transposes row-major B.
    template <class Layout> __device__ __forceinline__ static void load_b(unsigned (&b)[4][2], SharedAddress slot, int k, int column) {
        const int lane = thread_index() % 32;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned f[4];
            load_matrices_transposed(f, slot + Layout::at(k + lane % 16, (column + 16 * half + lane / 16 * 8) * 2));
            b[2 * half][0] = f[0], b[2 * half][1] = f[1], b[2 * half + 1][0] = f[2], b[2 * half + 1][1] = f[3];
        }
    }

    // 16 rows of a transposed A.
    template <class Layout> __device__ __forceinline__ static void load_a(unsigned (&a)[4], SharedAddress slot, int k, int row) {
        const int lane = thread_index() % 32;
        load_matrices_transposed(a, slot + Layout::at(k + lane / 16 * 8 + lane % 8, (row + lane / 8 % 2 * 8) * 2));
    }

    // Row g (upper: g + 8) of 4 accumulator tiles: lane t of 4 holds columns 2t, 2t+1 of each; a 4x4 transpose among the 4 lanes gives
    // it all 8 columns of tile t, one 16-byte store instead of four of 4 bytes.
    template <bool ALIGNED> __device__ __forceinline__ static void store(Storage *row, int left, float (&c)[4][4], int upper, bool inside) {
        const int t = thread_index() % 4;
        unsigned v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = pack<Storage>(c[j][2 * upper], c[j][2 * upper + 1]);
#pragma unroll
        for (int mask = 1; mask < 4; mask *= 2) {
#pragma unroll
            for (int low = 0; low < 4; low++) {
                if (low & mask) continue;
                const unsigned got = exchange(t & mask ? v[low] : v[low + mask], mask);
                v[low] = t & mask ? got : v[low];
                v[low + mask] = t & mask ? v[low + mask] : got;
            }
        }
        if (inside) store_row<ALIGNED>(row + 8 * t, Words4{v[0], v[1], v[2], v[3]}, left - 8 * t);
    }
};

template <> struct Factors<float> {  // float32 rounded to TF32
    static constexpr int K = 8;
    template <int ROW_BYTES> using AlongColumns = ByRowPairs<ROW_BYTES>;
    template <int ROW_BYTES> using OfColumns = ByRowFours<ROW_BYTES>;

    __device__ __forceinline__ static int column(int t, int j, int odd) { return 8 * t + 4 * odd + j; }
    __device__ __forceinline__ static void round(unsigned (&f)[4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) f[i] = round_to_tf32(f[i]);
    }

    // No ldmatrix transposes 32-bit elements. Instead column g of instruction j is B's column 4g + j, so that one 16-byte load gives
    // a lane its element for all 4 instructions; C's columns are permuted alike, and undone in `store`.
    template <class Layout> __device__ __forceinline__ static void load_b(unsigned (&b)[4][2], SharedAddress slot, int k, int column) {
        const int lane = thread_index() % 32;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const Words4 v = load_shared_16(slot + Layout::at(k + 4 * half + lane % 4, (column + lane / 4 * 4) * 4));
            b[0][half] = round_to_tf32(v.x), b[1][half] = round_to_tf32(v.y);
            b[2][half] = round_to_tf32(v.z), b[3][half] = round_to_tf32(v.w);
        }
    }

    template <class Layout> __device__ __forceinline__ static void load_a(unsigned (&a)[4], SharedAddress slot, int k, int row) {
        const int lane = thread_index() % 32;
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = bits_of(load_shared_float(slot + Layout::at(k + i / 2 * 4 + lane % 4, (row + i % 2 * 8 + lane / 4) * 4)));
    }

    // Column 2t + p of tile j is C's column 8t + 4p + j.
    template <bool ALIGNED> __device__ __forceinline__ static void store(float *row, int left, float (&c)[4][4], int upper, bool inside) {
        const int t = thread_index() % 4;
        if (!inside) return;
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const int i = 2 * upper + p;
            const Words4 v{bits_of(c[0][i]), bits_of(c[1][i]), bits_of(c[2][i]), bits_of(c[3][i])};
            store_row<ALIGNED>(row + 8 * t + 4 * p, v, left - 8 * t - 4 * p);
        }
    }
};

// A transposed B has K along its rows, as A: ldmatrix loads a lane's elements of 2 instructions.
template <class Of, class Layout>
__device__ __forceinline__ void load_b_of_columns(unsigned (&b)[4][2], SharedAddress slot, int k_byte, int column) {
    const int lane = thread_index() % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        unsigned f[4];
        const int row = column + Of::column(lane % 8 / 2, 2 * half + lane / 16, lane % 2);
        load_matrices(f, slot + Layout::at(row, k_byte + lane / 8 % 2 * 16));
        Of::round(f);
        b[2 * half][0] = f[0], b[2 * half][1] = f[1], b[2 * half + 1][0] = f[2], b[2 * half + 1][1] = f[3];
    }
}

// WARPS_K > 1: that many warps share a tile and take different parts of every step of K; their sums are added at the end.
// A_T, B_T: the factor is the transpose of a row-major matrix, in global and in shared memory.
template <class Storage_, int BM_, int BN_, int K_BYTES_, int WARPS_M_, int WARPS_N_, int WARPS_K_, int STAGES_, int GRANULE_,
          bool A_T_ = false, bool B_T_ = false>
struct MmaTile {
    using Storage = Storage_;
    static constexpr int BM = BM_, BN = BN_, BK = K_BYTES_ / sizeof(Storage), GRANULE = GRANULE_, STAGES = STAGES_;
    static constexpr bool A_T = A_T_, B_T = B_T_;
    static constexpr int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, WARPS_K = WARPS_K_, THREADS = 32 * WARPS_M * WARPS_N * WARPS_K;
    static constexpr int ROWS = BM / WARPS_M / 16, GROUPS = BN / WARPS_N / 32;  // per warp: 16-row tiles, 32-column groups
    static constexpr int K_STEPS = BK / WARPS_K / Factors<Storage>::K;          // instructions deep, per warp and stage
    static constexpr int ROW_BYTES_A = A_T ? BM * sizeof(Storage) : K_BYTES_, ROW_BYTES_B = B_T ? K_BYTES_ : BN * sizeof(Storage);
    static constexpr int BYTES_A = BM * K_BYTES_, STAGE_BYTES = BYTES_A + BN * K_BYTES_;
    template <int ROW_BYTES> using AlongColumns = typename Factors<Storage>::template AlongColumns<ROW_BYTES>;
    using LayoutA = typename Either<A_T, AlongColumns<ROW_BYTES_A>, ByRow<ROW_BYTES_A>>::type;
    using LayoutB =
        typename Either<B_T, typename Factors<Storage>::template OfColumns<ROW_BYTES_B>, AlongColumns<ROW_BYTES_B>>::type;
    using CopyA = TileCopy<Storage, A_T ? BK : BM, A_T ? BM : BK, GRANULE, THREADS, LayoutA>;
    using CopyB = TileCopy<Storage, B_T ? BN : BK, B_T ? BK : BN, GRANULE, THREADS, LayoutB>;
    static_assert(ROWS >= 1 && GROUPS >= 1 && BM % (16 * WARPS_M) == 0 && BN % (32 * WARPS_N) == 0, "whole warp tiles");
    static_assert(K_STEPS % 2 == 0, "every step starts with fragments[0]; its copies are issued at its first k, waited for at its last");
    static_assert(GRANULE >= 4 ? STAGES >= 3 : STAGES == 2, "registers are the third stage of a staged copy");
    static_assert((WARPS_K - 1) * BM * BN * 4 <= STAGES * STAGE_BYTES, "partial sums fit in the ring");
};

template <class Tile> struct Fragments {
    using Of = Factors<typename Tile::Storage>;
    unsigned a[Tile::ROWS][4], b[Tile::GROUPS][4][2];

    __device__ __forceinline__ void load(SharedAddress slot, int row, int column, int k) {
        constexpr int K_BYTES = 32;  // of an instruction's k: 16 x 2 or 8 x 4 bytes
        const int lane = thread_index() % 32;
#pragma unroll
        for (int i = 0; i < Tile::ROWS; i++) {
            if constexpr (Tile::A_T)
                Of::template load_a<typename Tile::LayoutA>(a[i], slot, k * Of::K, row + 16 * i);
            else
                load_matrices(a[i], slot + Tile::LayoutA::at(row + 16 * i + lane % 16, k * K_BYTES + lane / 16 * 16));
            Of::round(a[i]);
        }
#pragma unroll
        for (int j = 0; j < Tile::GROUPS; j++) {
            if constexpr (Tile::B_T)
                load_b_of_columns<Of, typename Tile::LayoutB>(b[j], slot + Tile::BYTES_A, k * K_BYTES, column + 32 * j);
            else
                Of::template load_b<typename Tile::LayoutB>(b[j], slot + Tile::BYTES_A, k * Of::K, column + 32 * j);
        }
    }
};

// Adds the partial sums of the warps that share a tile, in a fixed order; the first of them holds the result.
template <class Tile> __device__ __forceinline__ void add_partial_sums(float (&c)[Tile::ROWS][Tile::GROUPS][4][4], int warp, int part) {
    constexpr int COUNT = Tile::ROWS * Tile::GROUPS * 16, SHARING = Tile::WARPS_M * Tile::WARPS_N;
    float *sums = &c[0][0][0][0];
    const SharedAddress mine = shared_base() + 4 * (thread_index() % 32);
    block_barrier();  // the ring is about to be overwritten: every warp has read its last factors
    if (part > 0) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) store_shared(mine + 128 * (((part - 1) * SHARING + warp) * COUNT + i), sums[i]);
    }
    block_barrier();
    if (part > 0) return;
#pragma unroll
    for (int other = 0; other < Tile::WARPS_K - 1; other++) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) sums[i] = sum(sums[i], load_shared_float(mine + 128 * ((other * SHARING + warp) * COUNT + i)));
    }
}

// S > 1: split-K; the S blocks of a cluster have the same tile.
template <class Tile, int S = 1>
__device__ __forceinline__ void mma_sync_matmul(const typename Tile::Storage *a, const typename Tile::Storage *b, typename Tile::Storage *c,
                                              long long m, long long k, long long n) {
    using Of = Factors<typename Tile::Storage>;
    const TilePosition tile = tile_position<Tile::BM, Tile::BN>(m, n, block_index() / S);
    const long long row0 = static_cast<long long>(tile.m) * Tile::BM, column0 = static_cast<long long>(tile.n) * Tile::BN;
    const int rows_left = least(m - row0, Tile::BM), columns_left = least(n - column0, Tile::BN);
    const Steps part_of_k = steps_of_block<S>(static_cast<int>((k + Tile::BK - 1) / Tile::BK));
    const int steps = part_of_k.last - part_of_k.first;
    const int warp = thread_index() / 32 % (Tile::WARPS_M * Tile::WARPS_N), part = thread_index() / 32 / (Tile::WARPS_M * Tile::WARPS_N);
    const int warp_row = warp % Tile::WARPS_M * (16 * Tile::ROWS), warp_column = warp / Tile::WARPS_M * (32 * Tile::GROUPS);
    const int first_k = part * Tile::K_STEPS;
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
        next_a += Tile::A_T ? Tile::BK * m : Tile::BK, next_b += Tile::B_T ? Tile::BK : Tile::BK * n, k_left -= Tile::BK;
    };
    const auto deposit = [&](int slot) {
        copy_a.deposit(ring + slot * Tile::STAGE_BYTES);
        copy_b.deposit(ring + slot * Tile::STAGE_BYTES + Tile::BYTES_A);
    };

    // STAGES - 1 steps are under way before the first product. A group is committed per step even when there is nothing left to
    // fetch: then "all but the STAGES - 2 latest groups" always means "the next step has landed".
    for (int step = 0; step < Tile::STAGES - 1; step++) {
        if (step < steps) fetch(step), deposit(step);
        copies_commit();
    }
    copies_wait<Tile::STAGES - 2>();
    block_barrier();

    float sums[Tile::ROWS][Tile::GROUPS][4][4] = {};
    Fragments<Tile> fragments[2];  // one multiplies while the other loads
    fragments[0].load(ring, warp_row, warp_column, first_k);
    int slot = 0, free_slot = Tile::STAGES - 1;
    for (int step = 0; step < steps; step++) {
        const bool more = step + Tile::STAGES - 1 < steps;
#pragma unroll
        for (int i = 0; i < Tile::K_STEPS; i++) {
            if (i == Tile::K_STEPS - 1) {
                // This step's last factors are in registers, so its slot may be overwritten once all warps have passed the barrier;
                // behind it every thread's copies of the next step can be seen. After the last step the same slot is read again
                // (into fragments that nothing uses), because the next one may never have been written.
                if (more) deposit(free_slot);
                copies_wait<Tile::STAGES - 2>();
                block_barrier();
                free_slot = slot;
                if (step + 1 < steps) slot = slot + 1 == Tile::STAGES ? 0 : slot + 1;
            }
            fragments[(i + 1) % 2].load(ring + slot * Tile::STAGE_BYTES, warp_row, warp_column, first_k + (i + 1) % Tile::K_STEPS);
            if (i == 0) {
                // free_slot was read for the last time before the barrier that ended the last step.
                if (more) fetch(free_slot);
                copies_commit();
            }
#pragma unroll
            for (int r = 0; r < Tile::ROWS; r++) {
#pragma unroll
                for (int g = 0; g < Tile::GROUPS; g++) {
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        tensor_product(sums[r][g][j], fragments[i % 2].a[r], fragments[i % 2].b[g][j], typename Tile::Storage{});
                }
            }
        }
    }

    if constexpr (Tile::WARPS_K > 1) add_partial_sums<Tile>(sums, warp, part);
    if constexpr (S > 1) {
        constexpr int PARTS = (Tile::WARPS_K - 1) * Tile::BM * Tile::BN * 4;  // of other warps, which may still be read
        const ClusterReduce<S, Tile::BM, Tile::BN, Tile::THREADS> reduce(ring + PARTS);
        static_assert(PARTS + reduce.BYTES <= Tile::STAGES * Tile::STAGE_BYTES, "the sums fit in the ring");
        if constexpr (Tile::WARPS_K == 1) block_barrier();  // every warp has read its last factors
#pragma unroll
        for (int i = 0; part == 0 && i < Tile::ROWS * Tile::GROUPS * 16; i++) {
            const int r = i / (Tile::GROUPS * 16), g = i / 16 % Tile::GROUPS, j = i / 4 % 4, upper = i / 2 % 2, odd = i % 2;
            const int row = warp_row + 16 * r + 8 * upper + thread_index() % 32 / 4;
            const int column = warp_column + 32 * g + Of::column(thread_index() % 4, j, odd);
            reduce.write_partial(row, column, sums[r][g][j][2 * upper + odd]);
        }
        reduce.store(c + row0 * n + column0, n, rows_left, columns_left);
        return;
    }
    if (part > 0) return;
    const int lane_row = thread_index() % 32 / 4, right = columns_left - warp_column;
#pragma unroll
    for (int r = 0; r < Tile::ROWS; r++) {
#pragma unroll
        for (int upper = 0; upper < 2; upper++) {
            const int row = warp_row + 16 * r + 8 * upper + lane_row;
            typename Tile::Storage *to = c + (row0 + row) * n + column0 + warp_column;
#pragma unroll
            for (int g = 0; g < Tile::GROUPS; g++) {
                Of::template store<Tile::GRANULE == 16>(to + 32 * g, right - 32 * g, sums[r][g], upper, row < rows_left);
            }
        }
    }
}
