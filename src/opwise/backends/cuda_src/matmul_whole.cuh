// C = A B in 16 bits where a block's shared memory holds all of B, to K of 16 STEPS and 16 WARPS columns, whatever the rows begin on
// (mma.sync). A and B themselves begin on 16 bytes.
//
// Rows that follow one another are one stretch of memory, and eight of 16 bits are a multiple of 16 bytes, whatever K is: so a block's BM
// rows of A, and B, are copied as they lie, 16 bytes at a time, all under way at once, one barrier behind them. Every block begins B's copy
// elsewhere: all of them read it at the same time, and would else ask one slice of the L2 after the other together.
//
// The product is computed as its transpose, C' = B' A': a warp has 16 columns of B, which it reads once, and all BM rows of A. The order of
// K within a sum is free, so lane t of four has 4 STEPS that follow one another, of which each instruction takes four.
#pragma once
#include "matmul_tile.cuh"

template <class Storage_, int BM_, int WARPS_, int STEPS_> struct WholeTile {
    using Storage = Storage_;
    static constexpr int BM = BM_, BN = 16 * WARPS_, THREADS = 32 * WARPS_, STEPS = STEPS_;
    static_assert(BM % 8 == 0, "rows are eight of an instruction's columns, and begin on 16 bytes");
};

// A place below `end` for each block, far from its neighbours': by the golden ratio.
__device__ __forceinline__ unsigned spread(unsigned block, unsigned end) {
    return static_cast<unsigned>(static_cast<unsigned long long>(block * 0x9e3779b9u) * end >> 32);
}

// A copy_async_16 of fewer bytes than 16 reads no more either, but compute-sanitizer goes by the 16. So the last bytes of what is no multiple
// of 16 are copied by a thread for each two, and zeros behind them: asked for first of all, and stored when the other copies are under way.
struct CutOff {
    unsigned short part;
    __device__ __forceinline__ CutOff(const char *source, unsigned bytes) : part(0) {
        const unsigned at = (bytes & ~15u) + 2 * thread_index();
        if (thread_index() < 8) part = load_global_2(source + at, at < bytes);
    }
    __device__ __forceinline__ void store(SharedAddress to) const {
        if (thread_index() < 8) store_shared(to + 2 * thread_index(), part);
    }
};

// Copies `bytes` bytes from an address on 16 and writes zeros behind them to `room`, a multiple of 16, beginning at `begin`.
template <int THREADS>
__device__ __forceinline__ void copy_whole(SharedAddress to, const void *from, unsigned bytes, unsigned room, unsigned begin) {
    const char *source = static_cast<const char *>(from);
    const unsigned full = bytes & ~15u;
    const CutOff cut_off(source, bytes);
#pragma unroll 1
    for (unsigned i = 16 * thread_index(); i < room; i += 16 * THREADS) {
        const unsigned at = i + begin < room ? i + begin : i + begin - room;
        if (full == bytes || at != full) copy_async_16(to + at, at < full ? source + at : source, at < full ? 16 : 0);
    }
    if (full < bytes) cut_off.store(to + full);
}

template <class Tile>
__device__ __forceinline__ void whole_matmul(const typename Tile::Storage *a, const typename Tile::Storage *b, typename Tile::Storage *c,
                                             long long m, long long k, long long n) {
    using Storage = typename Tile::Storage;
    constexpr int EACH = 4 * Tile::STEPS, GROUPS = Tile::BM / 8;  // k of a lane; eights of rows
    const int depth = static_cast<int>(k), width = static_cast<int>(n);
    const long long row0 = static_cast<long long>(block_index()) * Tile::BM;
    const int rows_left = least(m - row0, Tile::BM);
    const unsigned bytes_a = 2 * Tile::BM * depth, bytes_b = 2 * depth * width, pitch = 2 * width;
    const SharedAddress rows_a = shared_base(), rows_b = rows_a + bytes_a;
    copy_whole<Tile::THREADS>(rows_a, a + row0 * k, 2 * rows_left * depth, bytes_a, 0);
    // Zeros behind B, to the last row that a lane reads of it: what they meet of A, of its next row, is made zero below.
    const unsigned room_b = (2 * ((4 * EACH - 1) * width + Tile::BN) + 15) & ~15u;
    copy_whole<Tile::THREADS>(rows_b, b, bytes_b, room_b, spread(block_index(), bytes_b) & ~127u);
    copies_commit();

    const int lane = thread_index() % 32, g = lane / 4, t = lane % 4, column = thread_index() / 32 * 16 + g;
    const int count = depth - EACH * t;  // of this lane's k, those before K's end
    const SharedAddress at_a = rows_a + 2 * (g * depth + EACH * t);
    SharedAddress at_b = rows_b + EACH * t * pitch + 2 * column;
    float sums[GROUPS][2][4] = {};  // of even and odd steps: no product waits for the one before it
    copies_wait<0>();
    block_barrier();
#pragma unroll
    for (int i = 0; i < Tile::STEPS; i++) {
        unsigned left[4], right[GROUPS][2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = 4 * i + 2 * half;
            const unsigned within = at + 1 < count ? ~0u : at < count ? 0xffffu : 0u;
#pragma unroll
            for (int beside = 0; beside < 2; beside++) {  // columns beyond N: of sums that nobody stores
                const SharedAddress from = at_b + 16 * beside;
                left[2 * half + beside] = load_shared_2(from) | load_shared_2(from + pitch) << 16;
            }
            at_b += 2 * pitch;
#pragma unroll
            for (int r = 0; r < GROUPS; r++) {
                const SharedAddress from = at_a + 16 * r * depth + 2 * at;
                right[r][half] = (load_shared_2(from) | load_shared_2(from + 2) << 16) & within;
            }
        }
#pragma unroll
        for (int r = 0; r < GROUPS; r++) tensor_product(sums[r][i % 2], left, right[r], Storage{});
    }
#pragma unroll
    for (int r = 0; r < GROUPS; r++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = 8 * r + 2 * t + e % 2, at = column + e / 2 * 8;
            if (row < rows_left && at < width) from_float(sum(sums[r][0][e], sums[r][1][e]), c[(row0 + row) * n + at]);
        }
    }
}
