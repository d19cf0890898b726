// C = A B in 16 bits on Hopper where B has few columns and a block's shared memory holds all of them: A is read once, and that is the time.
//
// A block stays for one tile of C after another, each as high as spreads A evenly. Its last warp lets the copy engine fill a ring of slots, a
// box of all the tile's rows and 64 of K each, as many as fit beside B; with those of the first tile come the rows of B that they meet, which
// stay. Each of the other warps multiplies 16 rows of a slot (mma.sync): of every one, or, where a tile has few rows, several warps take slots
// by turns, and their sums meet at the end. What a warp has of C is one stretch of memory, and leaves so.
#pragma once
#include "matmul_tile.cuh"
#include "matmul_wgmma_ptx.cuh"
#include "matmul_whole.cuh"

template <class Storage_, int COLUMNS_> struct HeldTile {
    using Storage = Storage_;
    static constexpr int COLUMNS = COLUMNS_, EIGHTS = COLUMNS / 8, BK = 64, ROW = 2 * BK, ROW_B = 2 * COLUMNS, BOX_B = BK * ROW_B;
    static constexpr int UNIT = 32, THREADS = 32 * (16 + 1);  // K between two looks whether it ends; threads of a block at most
    static constexpr int SUMS = 4 * EIGHTS;                   // of a thread
    static_assert(COLUMNS % 8 == 0);

    // Shared memory: the ring, all of B, a warp's part of C, two barriers a slot. From the first multiple of 1024 on. Sums meet in the ring.
    // sixteens: of rows of a tile. All but k and steps are the plan's, which has them at hand.
    int k, steps, stages, sharing, sixteens, tiles;
    SharedAddress ring;
    __device__ __forceinline__ HeldTile(long long k, long long stages, long long sharing, long long sixteens, long long tiles)
        : k(static_cast<int>(k)), steps((this->k + BK - 1) / BK), stages(static_cast<int>(stages)), sharing(static_cast<int>(sharing)),
          sixteens(static_cast<int>(sixteens)), tiles(static_cast<int>(tiles)), ring((shared_base() + 1023) & ~1023u) {}
    __device__ __forceinline__ int warps() const { return sharing * sixteens; }  // that multiply
    __device__ __forceinline__ int rows() const { return 16 * sixteens; }
    __device__ __forceinline__ SharedAddress slot(int i) const { return ring + i * rows() * ROW; }
    __device__ __forceinline__ SharedAddress of_b() const { return slot(stages); }
    __device__ __forceinline__ SharedAddress outbox(int sixteen) const { return of_b() + steps * BOX_B + sixteen * 16 * ROW_B; }
    __device__ __forceinline__ SharedAddress full(int i) const { return outbox(sixteens) + 8 * i; }
    __device__ __forceinline__ SharedAddress empty(int i) const { return full(stages + i); }
    // Of the warps that have the sixteen's later slots, the `number`-th.
    __device__ __forceinline__ SharedAddress sums_of(int number, int sixteen) const {
        return ring + ((number * sixteens + sixteen) * SUMS * 32 + thread_index() % 32) * 4;
    }
};

// This block's steps, one after the other, and the slot of each: visit(tile of C, step of it, K from, slot, parity of the ring's round). The
// order of K is free, and each block begins elsewhere: all read B at the same time, and would else ask for the same part of it together.
template <class Tile, class Visit> __device__ __forceinline__ void for_each_step(const Tile &tile, Visit visit) {
    int slot = 0;
    unsigned round = 0;
    const int begin = static_cast<int>(spread(block_index(), tile.steps));
    for (int i = block_index(); i < tile.tiles; i += gridDim.x) {
        int at = begin;
#pragma unroll 1
        for (int step = 0; step < tile.steps; step++) {
            visit(i, step, at * Tile::BK, slot, round);
            if (++slot == tile.stages) slot = 0, round ^= 1;
            if (++at == tile.steps) at = 0;
        }
    }
}

// B lies as in memory, and behind it, to a whole step, zeros: what is outside of A is zero and must not meet a NaN.
template <class Tile> __device__ __forceinline__ void fill_up(const Tile &tile) {
    for (int i = tile.k * Tile::ROW_B + 16 * thread_index(); i < tile.steps * Tile::BOX_B; i += 16 * blockDim.x)
        store_shared_16(tile.of_b() + i, {0, 0, 0, 0});
}

template <class Tile>
__device__ __forceinline__ void fetch_held(const Tile &tile, const TensorMap &a, const typename Tile::Storage *b) {
    for_each_step(tile, [&](int i, int, int depth, int slot, unsigned round) {
        const SharedAddress full = tile.full(slot);
        const int bytes_b = i == block_index() ? min(tile.k - depth, Tile::BK) * Tile::ROW_B : 0;
        barrier_wait(tile.empty(slot), round ^ 1);
        barrier_expect(full, tile.rows() * Tile::ROW + bytes_b);
        box_load(tile.slot(slot), a, i * tile.rows(), depth, full);
        if (bytes_b > 0)
            stretch_load(tile.of_b() + depth * Tile::ROW_B, b + static_cast<long long>(depth) * Tile::COLUMNS, bytes_b, full);
    });
}

// 16 rows of a slot by all columns: `of_b` is where the step's rows of B lie, `left` how many of its K there are.
template <class Tile>
__device__ __forceinline__ void multiply_held(float (&sums)[Tile::EIGHTS][4], SharedAddress of_a, SharedAddress of_b, int left) {
    using Storage = typename Tile::Storage;
    const int lane = thread_index() % 32;
#pragma unroll
    for (int from = 0; from < Tile::BK; from += Tile::UNIT) {
        if (from >= left) break;
        unsigned a[2][4], b[4];
#pragma unroll
        for (int j = 0; j < 2; j++) load_matrices(a[j], of_a + ByRow<Tile::ROW>::at(lane % 16, 2 * from + 32 * j + lane / 16 * 16));
#pragma unroll
        for (int e = 0; e < Tile::EIGHTS; e++) {
            load_matrices_transposed(b, of_b + (from + lane) * Tile::ROW_B + 16 * e);
            tensor_product(sums[e], a[0], {b[0], b[1]}, Storage{});
            tensor_product(sums[e], a[1], {b[2], b[3]}, Storage{});
        }
    }
}

// The sums of the warps that share K, in a fixed order, by the first of them; true there. The block has this tile alone.
template <class Tile> __device__ __forceinline__ bool met(const Tile &tile, float (&sums)[Tile::EIGHTS][4], int share, int sixteen) {
    if (tile.sharing == 1) return true;
    threads_barrier(1, 32 * tile.warps());  // the ring is read
    if (share > 0) {
#pragma unroll
        for (int i = 0; i < Tile::SUMS; i++) store_shared(tile.sums_of(share - 1, sixteen) + 128 * i, sums[i / 4][i % 4]);
    }
    threads_barrier(1, 32 * tile.warps());
    if (share > 0) return false;
    for (int other = 0; other < tile.sharing - 1; other++) {
#pragma unroll
        for (int i = 0; i < Tile::SUMS; i++) {
            float &total = sums[i / 4][i % 4];
            total = sum(total, load_shared_float(tile.sums_of(other, sixteen) + 128 * i));
        }
    }
    return true;
}

// 16 rows of C, of which `rows_left` are there, through the warp's outbox.
template <class Tile>
__device__ __forceinline__ void store_held(const float (&sums)[Tile::EIGHTS][4], SharedAddress outbox, typename Tile::Storage *c, int rows_left) {
    const int lane = thread_index() % 32;
#pragma unroll
    for (int e = 0; e < Tile::EIGHTS; e++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const unsigned pair = pack_pair(sums[e][2 * half], sums[e][2 * half + 1], typename Tile::Storage{});
            store_shared(outbox + (lane / 4 + 8 * half) * Tile::ROW_B + 16 * e + lane % 4 * 4, as_float(pair));
        }
    }
    warp_barrier();
#pragma unroll
    for (int piece = lane; piece < 16 * Tile::EIGHTS; piece += 32)
        if (piece < rows_left * Tile::EIGHTS) reinterpret_cast<Words4 *>(c)[piece] = load_shared_16(outbox + 16 * piece);
}

// n is COLUMNS, k a multiple of 8; all addresses are on 16 bytes. Where warps share K the grid has a block a tile.
template <class Tile>
__device__ __forceinline__ void held_matmul(const Tile &tile, const TensorMap &a, const typename Tile::Storage *b, typename Tile::Storage *c,
                                            long long m) {
    const int warp = warp_index(), lane = thread_index() % 32;
    if (elected()) {  // a lane of each warp, since an init's address is one for all lanes
        for (int i = warp; i < tile.stages; i += tile.warps() + 1) barrier_init(tile.full(i), 1), barrier_init(tile.empty(i), tile.sixteens);
        barriers_publish();
    }
    fill_up(tile);
    block_barrier();
    if (warp == tile.warps()) {
        if (elected()) fetch_held(tile, a, b);
        return;
    }
    const int share = static_cast<unsigned>(warp) / static_cast<unsigned>(tile.sixteens), sixteen = warp - share * tile.sixteens;
    float sums[Tile::EIGHTS][4];
    int whose = 0;  // of the warps that share K
    for_each_step(tile, [&](int i, int step, int depth, int slot, unsigned round) {
        if (step == 0) {
#pragma unroll
            for (int e = 0; e < Tile::SUMS; e++) sums[e / 4][e % 4] = 0.0f;
        }
        if (whose == share) {
            barrier_wait(tile.full(slot), round);
            multiply_held<Tile>(sums, tile.slot(slot) + sixteen * 16 * Tile::ROW, tile.of_b() + depth * Tile::ROW_B, tile.k - depth);
            warp_barrier();  // all lanes have read the slot, and what they last laid for C
            if (lane == 0) barrier_arrive(tile.empty(slot));
        }
        if (++whose == tile.sharing) whose = 0;
        if (step + 1 < tile.steps || !met(tile, sums, share, sixteen)) return;
        const long long row = static_cast<long long>(i) * tile.rows() + 16 * sixteen;
        store_held<Tile>(sums, tile.outbox(sixteen), c + row * Tile::COLUMNS, least(m - row, 16));
    });
}
