// What multiplies the tiles of unaligned_tma_copies.cuh, and the kernels' body (sm_90a alone).
//
// Sums and ring are those of wgmma_tf32.cuh: each of two warpgroups has 64 columns and all rows of the tile, and reads the next
// stage's elements of B while the tensor cores multiply this one's.
#pragma once
#include "matmul/extra/unaligned_tma_copies.cuh"

// Of B, a stage: what a thread multiplies. Of thread t of eight g of warp w, columns 16 w + g and 8 on; of an instruction's k, TF32: t and
// t + 4; 16 bits: 2 t, 2 t + 1 and 8 on.
template <class Tile> struct OddFetch {
    static constexpr int WORDS = 16, PLACES = Tile::SIZE == 2 ? 2 : 1;
    unsigned from[PLACES][2], flip[8];  // where column and column + 8 of a place's rows lie; what the swizzle does with them
    __device__ __forceinline__ OddFetch() {
        const int first = thread_index() % 4 * PLACES;
#pragma unroll
        for (int i = 0; i < 8; i++) flip[i] = ((first * Tile::APART + i) & 7) << 4;
    }
    // shift: of A's rows.
    template <class Maps> __device__ __forceinline__ void begin(const Maps &b, int shift, int consumer) {
        const int first = thread_index() % 4 * PLACES, column = 64 * consumer + thread_index() / 32 % 4 * 16 + thread_index() % 32 / 4;
#pragma unroll
        for (int i = 0; i < PLACES; i++) {
#pragma unroll
            for (int right = 0; right < 2; right++) {
                // Of columns beyond BN whatever is there.
                const int at = min(column + 8 * right + b.shift[(first + i - shift) & (Tile::CLASSES - 1)], Tile::WIDE - 1);
                from[i][right] = Tile::BYTES_A + (at / Tile::BOX_COLUMNS * Tile::CLASSES + first + i) * Tile::APART * 128 +
                                 at % Tile::BOX_COLUMNS * Tile::SIZE;
            }
        }
    }
    __device__ __forceinline__ void operator()(unsigned (&f)[WORDS], SharedAddress slot) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int below = 0; below < 2; below++) {
                const int row = 2 * i + below;
#pragma unroll
                for (int right = 0; right < 2; right++) {
                    unsigned &to = f[4 * i + 2 * below + right];
                    if constexpr (Tile::SIZE == 4)
                        to = load_word(slot + (from[0][right] ^ flip[row]) + row * 128);
                    else  // of the place beside, the swizzle is that of a row further
                        to = load_half(slot + (from[0][right] ^ flip[row]) + row * 128) |
                             load_half(slot + (from[1][right] ^ flip[(row + Tile::APART) % 8]) + row * 128) << 16;
                }
            }
        }
    }
};

// What is before a row in its first chunk of 16 bytes is not the row's.
template <class Tile> __device__ __forceinline__ void clear_before_rows(SharedAddress slot, int shift) {
    const int row = thread_index();
    if (row < Tile::BM) {
        const SharedAddress at = slot + row * 128 + (row & 7) * 16;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int count = shift * Tile::SIZE - 4 * i;  // bytes of this word to clear
            if (count >= 4)
                store_word(at + 4 * i, 0);
            else if (count == 2)
                store_word(at + 4 * i, load_word(at + 4 * i) & 0xffff0000u);
        }
    }
    publish_to_copies();
    warpgroup_barrier<128 * Tile::CONSUMERS>(1);
}

template <class Tile, int S, class Maps>
__device__ __forceinline__ void consume_odd(const Tile &tile, const Maps &a, const Maps &b, typename Tile::Storage *c, long long m, int k,
                                            long long n, int consumer) {
    const int lane = thread_index() % 32, quarter = lane % 4, column = 64 * consumer + thread_index() / 32 % 4 * 16 + lane / 4;
    OddFetch<Tile> fetch;
    constexpr int WORDS = fetch.WORDS;
    PipelineState<Tile::STAGES> turn;
    for_each_odd<Tile, S>(a, m, k, n, [&](const OddWork &it) {
        float sums[Tile::BM / 2];
        unsigned even[WORDS], odd[WORDS];
        const int shift = Tile::STRAIGHT ? 0 : a.shift[it.cls];
        fetch.begin(b, shift, consumer);
        const auto step = [&](const unsigned(&now)[WORDS], unsigned(&then)[WORDS], int done) {
            const int slot = turn.slot;
            products_begin();
#pragma unroll
            for (int i = 0; i < WORDS / 4; i++)  // an instruction's k are 32 bytes of a row of A
                register_product(sums, now + 4 * i, factor(tile.slot(slot) + 32 * i, 1024, 0), done + i > 0, typename Tile::Storage{});
            products_commit();
            turn.next();
            if (done + 1 < it.steps) {
                barrier_wait(tile.full(turn.slot), turn.phase);
                fetch(then, tile.slot(turn.slot));
            }
            products_wait<0>();
            if (lane == 0) barrier_arrive(tile.empty(slot));
        };
        if (S > 1 && it.steps <= 0) {
#pragma unroll
            for (int i = 0; i < Tile::BM / 2; i++) sums[i] = 0.0f;
        } else {
            barrier_wait(tile.full(turn.slot), turn.phase);
            if (!Tile::STRAIGHT && it.depth == 0 && shift > 0) clear_before_rows<Tile>(tile.slot(turn.slot), shift);
            fetch(even, tile.slot(turn.slot));
        }
        for (int done = 0; done < it.steps; done += 2) {
            step(even, odd, done);
            if (done + 1 < it.steps) step(odd, even, done + 1);
        }
        typename Tile::Storage *const to = c + it.first * n + it.column;
        const int columns_left = least(n - it.column, Tile::BN);
        if constexpr (S > 1) {
            const ClusterReduce<S, Tile::BM, Tile::WIDE, 128 * Tile::CONSUMERS> reduce(tile.slot(0));
            static_assert(reduce.BYTES <= Tile::STAGES * Tile::STAGE_BYTES, "the sums fit in the ring");
            warpgroup_barrier<128 * Tile::CONSUMERS>(1);  // everybody has read its last factors
#pragma unroll
            for (int i = 0; i < Tile::BM / 2; i++) reduce.write_partial(i / 4 * 8 + 2 * quarter + i % 2, column + i / 2 % 2 * 8, sums[i]);
            reduce.store(to, Tile::APART_ROWS * n, it.rows, columns_left);
        } else {
            // Lanes whose rows follow one another exchange eights of columns for sixteens.
            const int beside = quarter & 1, at = column + 8 * beside;
            typename Tile::Storage *line = to + 2 * (quarter - beside) * Tile::APART_ROWS * n + at;
            const int rows_left = at < columns_left ? it.rows - 2 * (quarter - beside) : 0;
#pragma unroll
            for (int r = 0; r < Tile::BM / 8; r++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float upper = sums[4 * r + e], lower = sums[4 * r + 2 + e];
                    const float other = from_lane_beside(beside ? upper : lower);
                    (beside ? upper : lower) = other;
                    if (8 * r + e < rows_left) from_float(upper, line[e * Tile::APART_ROWS * n]);
                    if (8 * r + 2 + e < rows_left) from_float(lower, line[(2 + e) * Tile::APART_ROWS * n]);
                }
                line += 8 * Tile::APART_ROWS * n;
            }
        }
    });
}

// S > 1: of the cluster's S blocks, each of which has the same tile and a part of K.
template <class Tile, int S, class Maps>
__device__ __forceinline__ void unaligned_tma_matmul(const Maps &a, const Maps &b, typename Tile::Storage *c, long long m, long long k, long long n) {
    const Tile tile;
    const int warpgroup = warpgroup_index();
    if (thread_index() == 0) {
        for (int i = 0; i < Tile::STAGES; i++) {
            barrier_init(tile.full(i), 4), barrier_init(tile.empty(i), Tile::EMPTY_ARRIVALS);
            if (Tile::STRAIGHT) barrier_init(tile.landed(i), 1);
        }
        barriers_publish();
    }
    block_barrier();
    if (warpgroup == Tile::CONSUMERS) {
        registers_release<40>();
        const int warp = warp_index() % 4;
        if (Tile::STRAIGHT && warp >= 2)
            straighten<Tile, S>(tile, a, m, static_cast<int>(k), n);
        else if (elected())
            produce_odd<Tile, S>(tile, a, b, m, static_cast<int>(k), n, warp);
        if constexpr (S > 1) {  // the consumers' meetings wait for these, too
            __syncwarp();
            reduce_without_partials();
        }
    } else {
        registers_claim<232>();
        consume_odd<Tile, S>(tile, a, b, c, m, static_cast<int>(k), n, warpgroup);
    }
}
