// C = A B on Hopper, tiles turned round as in matmul_turned.cuh, in the manner of matmul_wgmma.cuh: blocks that stay, in pairs.
//
// wgmma's 64 rows are 64 columns of B; its columns are the tile's rows, of which there may be any multiple of 16. So a tile may be as high as
// one wave of all multiprocessors asks for: 2504 x 2504 is 13 x 10 tiles of 208 x 256, 2056 x 2056 is 12 x 11 of 176 x 192, and B's columns
// stay whole boxes. Each of the consumers has all rows and 64 or 128 of the columns.
//
// C leaves by boxes of 16 rows and 64 columns, which divide any of these tiles; up to OUT of them one below the other share an outbox.
#pragma once
#include "matmul_turned.cuh"

template <int CLUSTER_, class Storage_, int BM_, int BN_, int STAGES_, int OUTBOXES_, int CONSUMERS_, int OUT_, int HIGH_ = 1>
struct TurnedPairTile {
    using Storage = Storage_;
    static constexpr int BM = BM_, BN = BN_, BK = 64, STAGES = STAGES_, OUTBOXES = OUTBOXES_, CONSUMERS = CONSUMERS_;
    static constexpr int CLUSTER = CLUSTER_, HIGH = HIGH_, WIDE = CLUSTER / HIGH, OUT = OUT_;
    static constexpr int THREADS = 128 * (CONSUMERS + 1), UNITS = BN / 64 / CONSUMERS;  // of 64 columns, that a consumer multiplies
    static constexpr unsigned GROUP = 8 / HIGH;
    static constexpr int COLUMNS = 64, ROW = 128, BOX_B = BK * ROW, BOXES_B = BN / COLUMNS;
    static constexpr int BOX = BOX_B, PART = 16 * ROW;  // bytes of a box of B, of C
    static constexpr int BYTES_A = BM * 128, STAGE_BYTES = BYTES_A + BOXES_B * BOX;
    static constexpr int EMPTY_ARRIVALS = CLUSTER * CONSUMERS * 4;
    static constexpr int ROWS_FETCHED = BM / WIDE;
    static_assert(CLUSTER == 2 && ROWS_FETCHED * 128 % 1024 == 0, "the swizzle is by address");
    static_assert(BM % 16 == 0 && BN % (64 * CONSUMERS) == 0, "whole boxes");
    static constexpr bool TURNED = true;
    static constexpr int SUMS = BM / 2, PARTS = BM / 16, BATCHES = (PARTS + OUT - 1) / OUT;  // of a column of boxes
    static constexpr int CLAIMED = CONSUMERS > 2 ? 160 : 240, KEPT = CONSUMERS > 2 ? 32 : 24;

    SharedAddress ring;
    __device__ __forceinline__ TurnedPairTile() : ring((shared_base() + 1023) & ~1023u) {}
    __device__ __forceinline__ SharedAddress slot(int i) const { return ring + i * STAGE_BYTES; }
    __device__ __forceinline__ SharedAddress outbox(int consumer, int i) const {
        return slot(STAGES) + (OUTBOXES * consumer + i) * OUT * PART;
    }
    __device__ __forceinline__ SharedAddress full(int i) const { return outbox(CONSUMERS, 0) + 8 * i; }
    __device__ __forceinline__ SharedAddress empty(int i) const { return full(STAGES + i); }
};

// BM rows of C by 64 columns, a consumer's `unit`-th. Matrices of 8 x 8 as in store_turned.
template <class Tile>
__device__ __forceinline__ void store_columns(const Tile &tile, const TensorMap &c, int row, int column, int consumer,
                                              const float (&sums)[Tile::SUMS], int unit) {
    using Storage = typename Tile::Storage;
    const int thread = thread_index() % 128, lane = thread % 32;
    const int line = lane / 16 * 8 + lane % 8, piece = 2 * (thread / 32) + lane / 8 % 2;
#pragma unroll
    for (int batch = 0; batch < Tile::BATCHES; batch++) {
        const int number = unit * Tile::BATCHES + batch;
        const SharedAddress outbox = tile.outbox(consumer, number % Tile::OUTBOXES);
        if (thread == 0) {
            if (Tile::UNITS * Tile::BATCHES % Tile::OUTBOXES && number == 0)
                boxes_wait<0>();  // the last tile ended with this outbox, too
            else
                boxes_wait<Tile::OUTBOXES - 1>();
        }
        warpgroup_barrier(1 + consumer);
#pragma unroll
        for (int part = 0; part < Tile::OUT && batch * Tile::OUT + part < Tile::PARTS; part++) {
            const float *from = sums + 8 * (batch * Tile::OUT + part);
            const unsigned f[4] = {pack_pair(from[0], from[1], Storage{}), pack_pair(from[2], from[3], Storage{}),
                                   pack_pair(from[4], from[5], Storage{}), pack_pair(from[6], from[7], Storage{})};
            store_matrices_turned(outbox + (16 * part + line) * 128 + (piece ^ (line & 7)) * 16, f);
        }
        publish_to_copies();
        warpgroup_barrier(1 + consumer);
        if (thread == 0) {
#pragma unroll
            for (int part = 0; part < Tile::OUT && batch * Tile::OUT + part < Tile::PARTS; part++)
                box_store_begin(c, row + 16 * (batch * Tile::OUT + part), column, outbox + part * Tile::PART);
            boxes_commit();
        }
    }
}

template <class Tile>
__device__ __forceinline__ void turned_pair_matmul(const TensorMap &a, const TensorMap &b, const TensorMap &c, long long m, long long k,
                                                   long long n) {
    by_warpgroups<Tile>(a, b, m, k, n, [&](const Tile &tile, int consumer) {
        Turn<Tile::STAGES> turn;
        for_each_tile<Tile>(m, n, [&](int row, int column) {
            float sums[Tile::UNITS][Tile::SUMS];
            const int last = multiply(tile, turn, static_cast<int>(k), consumer * Tile::UNITS * Tile::BOX, sums);
            products_wait<0>();
            release(tile, last);
#pragma unroll
            for (int unit = 0; unit < Tile::UNITS; unit++)
                store_columns(tile, c, row, column + 64 * (consumer * Tile::UNITS + unit), consumer, sums[unit], unit);
        });
    });
}
