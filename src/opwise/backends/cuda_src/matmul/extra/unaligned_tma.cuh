// C = A B by wgmma (sm_90a only) with TMA, for unaligned rows: one tensor map per residue class of rows, 8 classes for 16-bit elements, 4
// for TF32 (residue_maps.cuh).
//
// As in wgmma_tf32.cuh the transpose is computed, C' = B' A'. A is wgmma's right operand, read from shared memory, where the rows of a
// class have the same shift. So a tile has rows of A of one class, and B's k are shifted alike.
// If that leaves tiles half empty, a tile has consecutive rows instead (STRAIGHT), and two otherwise idle warps align them.
// B is read to registers element by element, each with its row's shift.
//
// TMA is the bottleneck: a row of 128 bytes takes it 4 clocks if unaligned, 2 if aligned to 128 bytes.
#pragma once
#include "matmul/common/cluster_reduce.cuh"
#include "matmul/common/residue_maps.cuh"
#include "matmul/common/wgmma.cuh"
#include "matmul/kernels/tile.cuh"
#include "matmul/kernels/wgmma.cuh"

template <class Storage_, int ROWS_, int STAGES_, bool STRAIGHT_ = false> struct UnalignedTile {
    using Storage = Storage_;
    static constexpr int SIZE = sizeof(Storage), CLASSES = 16 / SIZE, BM = ROWS_, STAGES = STAGES_, BK = 128 / SIZE;
    static constexpr int WIDE = 128, BN = WIDE - CLASSES;  // columns of B in a stage; columns valid for all shifts
    static constexpr int CONSUMERS = 2, THREADS = 128 * (CONSUMERS + 1);
    static constexpr int BOX_COLUMNS = 128 / SIZE, B_BOXES = WIDE / BOX_COLUMNS;
    // Rows of 128 bytes from one class of B to the next, so that the swizzle, by address, differs among rows that a warp reads together.
    static constexpr int APART = SIZE == 2 ? 9 : 10;
    // STRAIGHT: consecutive rows of A. Their boxes are 16 bytes wider and land in a separate buffer.
    static constexpr bool STRAIGHT = STRAIGHT_;
    static constexpr int APART_ROWS = STRAIGHT ? 1 : CLASSES, PRODUCERS = STRAIGHT ? 2 : 4;
    static constexpr int RAW_ROW = 128 + 16, RAW_CLASS = (BM / CLASSES * RAW_ROW + 127) / 128 * 128;
    static constexpr int BYTES_A = BM * 128, BYTES_B = B_BOXES * CLASSES * APART * 128, BYTES_RAW = STRAIGHT ? CLASSES * RAW_CLASS : 0;
    static constexpr int STAGE_BYTES = (BYTES_A + BYTES_B + BYTES_RAW + 1023) / 1024 * 1024, COPIED_B = B_BOXES * CLASSES * 8 * 128;
    static constexpr int EMPTY_ARRIVALS = CONSUMERS * 4;  // one per warp
    static_assert(BK / CLASSES == 8 && STAGE_BYTES % 1024 == 0 && CLASSES * APART % 8 == 0 && BN % CLASSES == 0);

    // Shared memory, from the first multiple of 1024 on: the ring, the mbarriers.
    SharedAddress ring;
    __device__ __forceinline__ UnalignedTile() : ring((shared_base() + 1023) & ~1023u) {}
    __device__ __forceinline__ SharedAddress slot(int i) const { return ring + i * STAGE_BYTES; }
    __device__ __forceinline__ SharedAddress full(int i) const { return slot(STAGES) + 8 * i; }
    __device__ __forceinline__ SharedAddress empty(int i) const { return full(STAGES + i); }
    __device__ __forceinline__ SharedAddress landed(int i) const { return full(2 * STAGES + i); }  // STRAIGHT: A's boxes
};

// A tile: rows first, first + APART_ROWS, ... of A and C, `rows` of them; columns from `column` on; this block's steps of K, from element
// `depth` of A's map on.
struct OddWork {
    int cls, block, first, rows, column, depth, steps;
};
template <class Tile, int S, class Maps, class Work>
__device__ __forceinline__ void for_each_odd(const Maps &a, long long m, int k, long long n, Work work) {
    const int blocks = static_cast<int>((m + Tile::APART_ROWS * Tile::BM - 1) / (Tile::APART_ROWS * Tile::BM));
    const long long rows = static_cast<long long>(blocks) * Tile::APART_ROWS * Tile::BM;
    const unsigned count = blocks * Tile::APART_ROWS * static_cast<unsigned>((n + Tile::BN - 1) / Tile::BN);
    for (unsigned i = block_index() / S; i < count; i += S > 1 ? count : gridDim.x) {
        const TilePosition at = tile_position<Tile::BM, Tile::BN>(rows, n, i);
        OddWork it;
        it.cls = at.m % Tile::APART_ROWS, it.block = at.m / Tile::APART_ROWS;
        it.first = it.block * Tile::BM * Tile::APART_ROWS + it.cls;
        it.rows = least((m - it.first + Tile::APART_ROWS - 1) / Tile::APART_ROWS, Tile::BM);
        it.column = at.n * Tile::BN;
        const Steps steps = steps_of_block<S>((k + (Tile::STRAIGHT ? 0 : a.shift[it.cls]) + Tile::BK - 1) / Tile::BK);
        it.depth = steps.first * Tile::BK, it.steps = steps.last - steps.first;
        work(it);
    }
}

template <class Tile, class Maps>
__device__ __forceinline__ void boxes_to(SharedAddress to, const Maps &rows, int row, int column, SharedAddress barrier) {
#pragma unroll
    for (int c = 0; c < Tile::CLASSES; c++) box_load(to + c * Tile::RAW_CLASS, rows.map[c], row, column, barrier);
}

// By one thread of each of two or four warps, which share the classes of B: one thread would issue a small tile's copies too slowly. Place
// p of a stage has the rows of B with k = A's first k + p modulo CLASSES, of class p - shift.
template <class Tile, int S, class Maps>
__device__ __forceinline__ void produce_odd(const Tile &tile, const Maps &a, const Maps &b, long long m, int k, long long n, int warp) {
    constexpr int EACH = Tile::CLASSES / Tile::PRODUCERS;
    PipelineState<Tile::STAGES> turn;
    for_each_odd<Tile, S>(a, m, k, n, [&](const OddWork &it) {
        const int shift = Tile::STRAIGHT ? 0 : a.shift[it.cls];
        for (int step = 0; step < it.steps; step++) {
            const int depth = it.depth + step * Tile::BK;
            const SharedAddress slot = tile.slot(turn.slot), full = tile.full(turn.slot);
            barrier_wait(tile.empty(turn.slot), turn.phase ^ 1);
            barrier_expect(full, Tile::COPIED_B / Tile::PRODUCERS + (!Tile::STRAIGHT && warp == 0 ? Tile::BYTES_A : 0));
            if (!Tile::STRAIGHT && warp == 0) box_load(slot, a.map[it.cls], it.block * Tile::BM, depth, full);
            if (Tile::STRAIGHT && warp == 0) {
                barrier_expect(tile.landed(turn.slot), Tile::BM * Tile::RAW_ROW);
                boxes_to<Tile>(slot + Tile::BYTES_A + Tile::BYTES_B, a, it.first / Tile::CLASSES, depth, tile.landed(turn.slot));
            }
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const int place = warp * EACH + i, cls = (place - shift) & (Tile::CLASSES - 1);
                const int row = depth / Tile::CLASSES - (place < shift);
#pragma unroll
                for (int box = 0; box < Tile::B_BOXES; box++)
                    box_load(slot + Tile::BYTES_A + (box * Tile::CLASSES + place) * Tile::APART * 128, b.map[cls], row,
                             it.column + box * Tile::BOX_COLUMNS, full);
            }
            turn.next();
        }
    });
}

// By two warps: copies A's rows from the buffer to where wgmma reads them, each by its shift.
template <class Tile, int S, class Maps>
__device__ __forceinline__ void straighten(const Tile &tile, const Maps &a, long long m, int k, long long n) {
    const int thread = thread_index() % 64, upper = thread / 8, chunk = thread % 8, cls = upper % Tile::CLASSES;
    const unsigned from = Tile::BYTES_A + Tile::BYTES_B + cls * Tile::RAW_CLASS + chunk * 16 + a.shift[cls] * Tile::SIZE;
    const unsigned to = upper * 128 + (chunk ^ upper) * 16, down = from % 4 * 8;
    PipelineState<Tile::STAGES> turn;
    for_each_odd<Tile, S>(a, m, k, n, [&](const OddWork &it) {
        for (int step = 0; step < it.steps; step++) {
            const SharedAddress slot = tile.slot(turn.slot);
            barrier_wait(tile.landed(turn.slot), turn.phase);
#pragma unroll
            for (int i = 0; i < Tile::BM / 8; i++) {
                const SharedAddress at = slot + (from & ~3u) + (8 * i + upper) / Tile::CLASSES * Tile::RAW_ROW;
                unsigned words[5];
#pragma unroll
                for (int j = 0; j < 5; j++) words[j] = Tile::SIZE == 4 && j == 4 ? 0 : load_word(at + 4 * j);
                store_shared_16(slot + to + i * 1024, down_by(words[0], words[1], down), down_by(words[1], words[2], down),
                                down_by(words[2], words[3], down), down_by(words[3], words[4], down));
            }
            publish_to_copies();
            __syncwarp();
            if (thread % 32 == 0) barrier_arrive(tile.full(turn.slot));
            turn.next();
        }
    });
}

// A thread's elements of B in a stage. With g = lane / 4, t = lane % 4 in warp w: columns 16 w + g and 8 further; of an instruction's k,
// for TF32 t and t + 4, for 16 bits 2 t, 2 t + 1 and 8 further.
template <class Tile> struct OddFetch {
    static constexpr int WORDS = 16, PLACES = Tile::SIZE == 2 ? 2 : 1;
    unsigned from[PLACES][2], flip[8];  // offsets of columns c and c + 8 of a place's rows; the swizzle's XOR
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
                // Columns beyond BN are read but not stored.
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
                    else  // the next place has the swizzle of APART rows further
                        to = load_half(slot + (from[0][right] ^ flip[row]) + row * 128) |
                             load_half(slot + (from[1][right] ^ flip[(row + Tile::APART) % 8]) + row * 128) << 16;
                }
            }
        }
    }
};

// Clears the `shift` elements before a row in its first 16 bytes, which belong to another row.
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
            // Lanes of neighbouring rows exchange values, so that a store covers 16 columns instead of 8.
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

// S > 1: of the cluster's S blocks each has the same tile and a part of K.
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
        if constexpr (S > 1) {  // the cluster barriers need all threads
            __syncwarp();
            reduce_without_partials();
        }
    } else {
        registers_claim<232>();
        consume_odd<Tile, S>(tile, a, b, c, m, static_cast<int>(k), n, warpgroup);
    }
}
