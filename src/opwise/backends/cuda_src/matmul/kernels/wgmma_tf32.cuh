// C = A B by wgmma (sm_90a only) in TF32: row-major float32 factors, which TMA rounds to TF32.
//
// wgmma reads TF32 from shared memory only with k along the rows, which a row-major B does not have. So it computes the transpose,
// C' = B' A': the right operand is A, from shared memory, and the left one is B, which threads read to registers. Each of the two consumer
// warpgroups has 64 columns of C and all rows of the tile. Ring, producer and mbarriers are as in wgmma.cuh.
//
// A thread reads the next stage's elements of B while the tensor cores multiply this one's.
#pragma once
#include "matmul/kernels/tile.cuh"
#include "matmul/kernels/wgmma.cuh"

template <int ROWS_, int STAGES_> struct Tf32Tile {
    static constexpr int CONSUMERS = 2, THREADS = 128 * (CONSUMERS + 1);
    static constexpr int BM = ROWS_, BN = 64 * CONSUMERS, BK = 32, STAGES = STAGES_;
    static constexpr unsigned GROUP = 16;  // as in tile_position
    static constexpr int BOX = BK * 128;  // bytes of 32 rows and 32 columns of B
    static constexpr int BYTES_A = BM * 128, STAGE_BYTES = BYTES_A + BN / 32 * BOX;
    static constexpr int EMPTY_ARRIVALS = CONSUMERS * 4;  // one a warp
    static constexpr int CLUSTER = 1;

    // Shared memory, from the first multiple of 1024 on: the ring, the mbarriers.
    SharedAddress ring;
    __device__ __forceinline__ Tf32Tile() : ring((shared_base() + 1023) & ~1023u) {}
    __device__ __forceinline__ SharedAddress slot(int i) const { return ring + i * STAGE_BYTES; }
    __device__ __forceinline__ SharedAddress full(int i) const { return slot(STAGES) + 8 * i; }
    __device__ __forceinline__ SharedAddress empty(int i) const { return full(STAGES + i); }
};

template <class Tile>
__device__ __forceinline__ void produce_tf32(const Tile &tile, const TensorMap &a, const TensorMap &b, long long m, int k, long long n) {
    PipelineState<Tile::STAGES> turn;
    for_each_tile<Tile>(m, n, [&](int row, int column) {
        for (int depth = 0; depth < k; depth += Tile::BK) {
            const SharedAddress slot = tile.slot(turn.slot), full = tile.full(turn.slot);
            barrier_wait(tile.empty(turn.slot), turn.phase ^ 1);
            barrier_expect(full, Tile::STAGE_BYTES);
            box_load(slot, a, row, depth, full);
#pragma unroll
            for (int box = 0; box < Tile::BN / 32; box++)
                box_load(slot + Tile::BYTES_A + box * Tile::BOX, b, depth, column + 32 * box, full);
            turn.next();
        }
    });
}

template <class Tile>
__device__ __forceinline__ void consume_tf32(const Tile &tile, float *c, long long m, int k, long long n, int consumer) {
    constexpr int WORDS = Tile::BK / 2;  // of B, a thread and stage
    const int lane = thread_index() % 32, warp = thread_index() / 32 % 4, quarter = lane % 4, eighth = lane / 4;
    // Any of B's columns may be any of the product's rows. In their own order a warp's 16, of which it reads 8 at once in 4 rows, are by
    // the swizzle 4 chunks of 16 bytes: two reads of the same banks. So a read takes 4 columns and the 4 that are 16 on: 8 chunks. Of B the
    // thread has row `quarter` and column 8 (warp % 2) + 16 (eighth / 4) + eighth % 4 of 32, the column 4 on, and the same 4 rows down.
    const unsigned chunk = (warp % 2 * 2 + eighth / 4 * 4) ^ quarter;
    constexpr unsigned NEXT = 16;  // 4 columns on, a chunk's number changes in bit 0
    const unsigned of_b = Tile::BYTES_A + (consumer * 2 + warp / 2) * Tile::BOX + quarter * 128 + chunk * 16 + eighth % 4 * 4;
    const auto fetch = [&](unsigned(&f)[WORDS], int slot) {
        const SharedAddress at = tile.slot(slot) + of_b;
        const SharedAddress right = at ^ NEXT, below = at ^ 64, both = below ^ NEXT;  // 4 rows down, it changes in bit 2, by the swizzle
#pragma unroll
        for (int i = 0; i < WORDS / 4; i++) {
            f[4 * i] = load_word(at + 8 * i * 128), f[4 * i + 1] = load_word(right + 8 * i * 128);
            f[4 * i + 2] = load_word(below + (8 * i + 4) * 128), f[4 * i + 3] = load_word(both + (8 * i + 4) * 128);
        }
    };
    PipelineState<Tile::STAGES> turn;
    for_each_tile<Tile>(m, n, [&](int row, int column) {
        float sums[Tile::BM / 2];
        unsigned even[WORDS], odd[WORDS];
        const auto step = [&](const unsigned(&now)[WORDS], unsigned(&then)[WORDS], int depth) {
            const int slot = turn.slot;
            products_begin();
#pragma unroll
            for (int i = 0; i < WORDS / 4; i++)  // 8 elements of k are 32 bytes of a row of A
                transposed_product(sums, now + 4 * i, factor(tile.slot(slot) + 32 * i, 1024, 0), depth + i > 0);
            products_commit();
            turn.next();
            if (depth + Tile::BK < k) {
                barrier_wait(tile.full(turn.slot), turn.phase);
                fetch(then, turn.slot);
            }
            products_wait<0>();
            if (lane == 0) barrier_arrive(tile.empty(slot));
        };
        barrier_wait(tile.full(turn.slot), turn.phase);
        fetch(even, turn.slot);
        for (int depth = 0; depth < k; depth += 2 * Tile::BK) {
            step(even, odd, depth);
            if (depth + Tile::BK < k) step(odd, even, depth + Tile::BK);
        }
        constexpr int APART = 16;  // columns that the thread stores of a row
        const int first = warp / 2 * 32 + warp % 2 * 8 + eighth;
        const long long i = row + 2 * quarter, j = column + 64 * consumer + first;
        const int rows_left = least(m - i, Tile::BM);
        float *to = c + i * n + j;
#pragma unroll
        for (int r = 0; r < Tile::BM / 8; r++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float left = sums[4 * r + e], right = sums[4 * r + 2 + e];
                const float other = __shfl_xor_sync(0xffffffffu, eighth < 4 ? right : left, 16);
                (eighth < 4 ? right : left) = other;  // 8 lanes exchange fours of columns for eights, whole sectors of memory
                if (8 * r + e < rows_left && j < n) to[e * n] = left;
                if (8 * r + e < rows_left && j + APART < n) to[e * n + APART] = right;
            }
            to += 8 * n;
        }
    });
}

template <class Tile>
__device__ __forceinline__ void tf32_matmul(const TensorMap &a, const TensorMap &b, float *c, long long m, long long k, long long n) {
    const Tile tile;
    if (thread_index() == 0) {
        for (int i = 0; i < Tile::STAGES; i++) barrier_init(tile.full(i), 1), barrier_init(tile.empty(i), Tile::EMPTY_ARRIVALS);
        barriers_publish();
    }
    block_barrier();
    const int warpgroup = warpgroup_index();
    if (warpgroup == Tile::CONSUMERS) {
        registers_release<40>();
        if (thread_index() / 32 % 4 == 0 && elected()) produce_tf32(tile, a, b, m, static_cast<int>(k), n);
    } else {
        registers_claim<232>();
        consume_tf32(tile, c, m, static_cast<int>(k), n, warpgroup);
    }
}
