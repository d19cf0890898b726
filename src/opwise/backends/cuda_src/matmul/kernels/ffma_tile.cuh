// The tile of ffma.cuh, which each warp has whole: the layout of its rings and mbarriers, and the alignment of B's rows in shared memory,
// so that they can be read by 16 bytes.
#pragma once
#include "matmul/common/residue_maps.cuh"
#include "matmul/kernels/ffma_tma.cuh"

template <int BM_, int BN_, int WARPS_, int CLASSES_, int TM_, int TN_, int STAGES_>
struct FfmaTile {
    static constexpr int BM = BM_, BN = BN_, BK = 16, WARPS = WARPS_, CLASSES = CLASSES_, TM = TM_, TN = TN_, STAGES = STAGES_;
    static constexpr int TX = BN / TN, TY = BM / TM, THREADS = 32 * WARPS, TURN = 8;  // k per iteration
    static constexpr bool ANY = CLASSES > 1;  // unaligned rows
    static constexpr int WIDER = ANY ? 16 : 0, LINE_A = BK * 4 + WIDER, LINE_B = BN * 4 + WIDER;  // bytes of a box's row
    static constexpr int LINES_A = BM / CLASSES * LINE_A, BOX_A = (LINES_A + 127) / 128 * 128;  // boxes begin on 128 bytes
    static constexpr int BOX_B = (BK / CLASSES * LINE_B + 127) / 128 * 128;
    static constexpr int ALIGNED = ANY ? 128 : 1024;  // boxes, and the swizzle, begin here
    static constexpr int BYTES_A = CLASSES * BOX_A, STAGE_BYTES = (BYTES_A + CLASSES * BOX_B + ALIGNED - 1) / ALIGNED * ALIGNED;
    static constexpr int RING_BYTES = STAGES * STAGE_BYTES;
    static constexpr int FILLED = BM * LINE_A + BK * LINE_B;  // of a stage, by boxes
    // Floats between rows of sums: 16-byte chunks of 4 rows are in different banks, except for BN = 80, whose ring has no room for that.
    static constexpr int PITCH = BN + (BN == 80 ? 0 : 8);
    static_assert(TX * TY == 32 && (TX == 2 || TX == 4 || TX == 8), "lanes are laid out for these");
    static_assert(BN * 4 != 128 || ANY || BYTES_A % 1024 == 0, "so does the swizzle of B");
    static_assert(BM * PITCH * 4 <= RING_BYTES, "a warp's sums fit in its ring");
    static_assert(!ANY || BM / CLASSES % TY == 0, "a thread's row is of the same class in all threads");

    // Shared memory, from the first multiple of 1024 on: a ring per warp, then an mbarrier per stage of each.
    SharedAddress rings;
    int warp, x, y;  // of the thread: the first of its columns is 4x, of its rows y; others are 4 TX and TY further
    __device__ __forceinline__ FfmaTile() : rings((shared_base() + 1023) & ~1023u), warp(warp_index()) {
        const int lane = thread_index() % 32;
        if constexpr (TX != 4)
            x = lane % TX, y = lane / TX;
        else  // 16 lanes read 8 rows of A and 2 chunks of B
            x = (lane & 1) + (lane >> 4) * 2, y = lane >> 1 & 7;
    }
    __device__ __forceinline__ SharedAddress ring(int warp) const { return rings + warp * RING_BYTES; }
    __device__ __forceinline__ SharedAddress slot(int i) const { return ring(warp) + i * STAGE_BYTES; }
    __device__ __forceinline__ SharedAddress full(int i) const { return ring(WARPS) + 8 * (warp * STAGES + i); }

    // The place of row r of A, and the offset of row k of B; rows are grouped by classes.
    __device__ __forceinline__ static constexpr int place(int r) { return r % CLASSES * (BM / CLASSES) + r / CLASSES; }
    __device__ __forceinline__ static constexpr int line(int k) {
        return k % CLASSES * BOX_B + k / CLASSES * LINE_B;
    }
    __device__ __forceinline__ static constexpr int class_of(int r) { return r * TY / (BM / CLASSES); }
    // The offset of this thread's first element of A in a stage, at k = 0 or 8, and from there of its row r at k of these 8. Lines of 64
    // bytes have the 64-byte swizzle; in lines of 80 bytes the same k of 8 lines is in different banks.
    __device__ __forceinline__ SharedAddress of_a(int k) const { return ANY ? y * LINE_A + k * 4 : (y * 64 | (y >> 1 & 3) << 4) ^ k * 4; }
    __device__ __forceinline__ static SharedAddress of_a(SharedAddress first, int r, int k) {
        return (ANY ? first + k * 4 : first ^ (k * 4 ^ (r * TY >> 1 & 3) << 4)) + r * TY * LINE_A + class_of(r) * (BOX_A - LINES_A);
    }
    // The same for B; lines of 128 bytes have the 128-byte swizzle.
    __device__ __forceinline__ SharedAddress of_b(int k) const { return BYTES_A + line(k) + x * 16; }
    __device__ __forceinline__ static SharedAddress of_b(SharedAddress first, int q, int k) {
        const int further = q * TX * 16;
        return (LINE_B == 128 ? first ^ (further ^ k * 16) : first + further) + line(k);
    }
};

// Shifts the rows of B in a stage so that they are aligned to 16 bytes. By all lanes of the ring's warp.
template <class Tile, class Factor> __device__ __forceinline__ void align_rows(SharedAddress rows, const Factor &b) {
    constexpr int LINES = Tile::BK / Tile::CLASSES, WORDS = Tile::BN / 32;
    static_assert(Tile::BN % 32 == 0);
    const int lane = thread_index() % 32;
    float words[Tile::CLASSES][LINES][WORDS];
#pragma unroll
    for (int pass = 0; pass < 2; pass++) {
#pragma unroll
        for (int c = 0; c < Tile::CLASSES; c++) {
#pragma unroll
            for (int i = 0; i < LINES * WORDS; i++) {
                const SharedAddress to = rows + c * Tile::BOX_B + i / WORDS * Tile::LINE_B + (lane + i % WORDS * 32) * 4;
                float &word = words[c][i / WORDS][i % WORDS];
                if (pass == 0)
                    word = load_float(to + shift_of(b, c) * 4);
                else
                    store_shared(to, word);
            }
        }
        warp_barrier();
    }
}
