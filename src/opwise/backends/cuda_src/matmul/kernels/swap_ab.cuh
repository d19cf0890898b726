// C = A B by wgmma (sm_90a) with swapped operands, C' = B' A', if tiles of 64 or 128 rows do not fill the SMs.
//
// wgmma's 64 rows are columns of B, and its columns, here any multiple of 16, are rows of C: 1536 x 1536 has 11 x 12 tiles of 144 x 128 for
// 132 SMs, but only 96 of 128 x 192. Boxes: BM rows of A by 64 of K (fewer rows if CUT), BK rows of K by 64 columns of B per consumer.
//
// One tile per block. A producer warp fills the ring as in split_k.cuh. A warpgroup transposes its sums into a released slot of the ring
// and stores them as one box of BM rows and 64 columns.
#pragma once
#include "matmul/kernels/split_k.cuh"

template <class Storage_, int BM_, int BN_, int STAGES_> struct SwapTile {
    using Storage = Storage_;
    static constexpr bool B_T = false;
    static constexpr bool CUT = BM_ <= 16;  // no tile of wgmma.py is so low
    static constexpr int BM = BM_, BN = BN_, BK = 64, STAGES = STAGES_, CONSUMERS = BN / 64, WARPS = 4 * CONSUMERS;
    static constexpr int THREADS = 32 * (WARPS + 1), UNITS = BM / 16;
    static constexpr int BOX_A = BM * 128, BOXES_A = 1, BOX_COLUMNS = 64, BOX_B = BK * 128, BOXES_B = CONSUMERS;
    static constexpr int BYTES_A = BOX_A, STAGE_BYTES = BYTES_A + BOXES_B * BOX_B;
    static_assert(BM % 16 == 0 && BN % 64 == 0 && CONSUMERS <= STAGES, "each consumer stores through a slot of its own");

    SharedAddress ring;
    __device__ __forceinline__ SwapTile() : ring((shared_base() + 1023) & ~1023u) {}
    __device__ __forceinline__ SharedAddress slot(int i) const { return ring + i * STAGE_BYTES; }
    __device__ __forceinline__ SharedAddress full(int i) const { return slot(STAGES) + 8 * i; }
    __device__ __forceinline__ SharedAddress empty(int i) const { return full(STAGES + i); }
};

// Computes the sums of a warpgroup: BM rows of C by its 64 columns. On return `turn` is the slot after the last.
template <class Tile>
__device__ __forceinline__ void consume_swapped(const Tile &tile, PipelineState<Tile::STAGES> &turn, int consumer, int steps,
                                               float (&sums)[Tile::BM / 2]) {
    const auto release = [&](int slot) {
        if (thread_index() % 32 == 0) barrier_arrive(tile.empty(slot));
    };
    int last = 0;
    for (int step = 0; step < steps; step++) {
        barrier_wait(tile.full(turn.slot), turn.phase);
        const unsigned long long a = factor(tile.slot(turn.slot), 1024, 0);
        const unsigned long long b = factor(tile.slot(turn.slot) + Tile::BYTES_A + consumer * Tile::BOX_B, 1024, 0);
        products_begin();
#pragma unroll
        for (int i = 0; i < Tile::BK / 16; i++)
            swapped_product(sums, further(b, 16 * 128 * i), further(a, 32 * i), step + i > 0, typename Tile::Storage{});
        products_commit();
        products_wait<1>();
        if (step > 0) release(last);
        last = turn.slot;
        turn.next();
    }
    products_wait<0>();
    release(last);  // a slot becomes an outbox
}

// Stores the sums. A warp's 16 rows of sums are 16 columns of C; stmatrix transposes 8 x 8 matrices to 16 bytes of 8 rows of the box.
template <class Tile>
__device__ __forceinline__ void store_swapped(SharedAddress outbox, const TensorMap &c, int row, int column, int consumer,
                                             const float (&sums)[Tile::BM / 2]) {
    using Storage = typename Tile::Storage;
    const int lane = thread_index() % 32;
    // Lane l gives the address of row l % 8 of matrix l / 8: rows 0-7 of columns 0-7 and 8-15, then rows 8-15.
    const int line = lane / 16 * 8 + lane % 8, piece = 2 * (thread_index() / 32 % 4) + lane / 8 % 2;
#pragma unroll
    for (int unit = 0; unit < Tile::UNITS; unit++) {
        const float *from = sums + 8 * unit;
        const unsigned f[4] = {pack_pair(from[0], from[1], Storage{}), pack_pair(from[2], from[3], Storage{}),
                               pack_pair(from[4], from[5], Storage{}), pack_pair(from[6], from[7], Storage{})};
        store_matrices_transposed(outbox + (16 * unit + line) * 128 + (piece ^ (line & 7)) * 16, f);
    }
    publish_to_copies();
    warpgroup_barrier(1 + consumer);
    if (thread_index() % 128 == 0) box_store(c, row, column + 64 * consumer, outbox), boxes_wait<0>();
    __syncwarp();
}

template <class Tile>
__device__ __forceinline__ void swap_ab_matmul(const TensorMap &a, const TensorMap &b, const TensorMap &c, long long m, long long k,
                                              long long n) {
    const Tile tile;
    if (thread_index() == 0) {
        for (int i = 0; i < Tile::STAGES; i++) barrier_init(tile.full(i), 1), barrier_init(tile.empty(i), Tile::WARPS);
        barriers_publish();
    }
    block_barrier();
    const TilePosition at = tile_position<Tile::BM, Tile::BN>(m, n);
    const int row = static_cast<int>(at.m * Tile::BM), column = static_cast<int>(at.n * Tile::BN);
    const int steps = static_cast<int>((k + Tile::BK - 1) / Tile::BK), consumer = warpgroup_index();
    if (consumer == Tile::CONSUMERS) {
        if (elected()) produce_part(tile, a, b, row, column, 0, steps, missing_bytes<Tile>(m));
        return;
    }
    float sums[Tile::BM / 2];
    PipelineState<Tile::STAGES> turn;
    consume_swapped(tile, turn, consumer, steps, sums);
    for (int i = 0; i < consumer; i++) turn.next();
    barrier_wait(tile.empty(turn.slot), turn.phase ^ 1);  // nobody reads here any more
    store_swapped<Tile>(tile.slot(turn.slot), c, row, column, consumer, sums);
}
