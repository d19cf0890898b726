// C = A B in float32 without TF32 on sm_90: TMA fills the ring, and the threads only load factors and multiply.
//
// A block computes 128 x 128, a thread 8 x 16: its rows are TY apart, its groups of 4 columns 4 TX apart. In shared memory A has rows of 32
// k, with the 128-byte swizzle, B rows of 128 columns, without. The factors of the next k are loaded while this one's are multiplied, also
// across stages. TURN: k per loop iteration; a larger one has less loop overhead and needs more instruction cache.
//
// The bottleneck are the register file's ports. An FMA reads three registers, and an SM sub-partition can issue one per clock, but reads
// only one even-numbered and one odd-numbered register per clock, besides those in the operand reuse cache from the FMA before. So
//     a row's 16 FMAs are consecutive and reuse the element of A; the next row's are in reverse order and reuse that of B;
//     an element of B, from a 16-byte load, has a register of its column's parity, so its sums should have the other parity. The 16-byte
//     stores would force the same parity, and moves at every k: `apart` avoids that;
//     elements of A are loaded singly, to any register; a 16-byte load of four k would fix their parity.
#pragma once
#include "matmul/kernels/wgmma.cuh"

template <int TM_, int TN_, int TURN_, int STAGES_ = 3> struct FfmaTmaTile {
    static constexpr int BM = 128, BN = 128, BK = 32, STAGES = STAGES_, TM = TM_, TN = TN_, TX = BN / TN, TY = BM / TM;
    static constexpr int THREADS = TX * TY, BYTES_A = BM * BK * 4, STAGE_BYTES = BYTES_A + BK * BN * 4, TURN = TURN_;
    static_assert(TM == 8 && TN == 16, "lanes are laid out for these");
    static_assert(TURN % 8 == 0 && BK % TURN == 0, "the two sets of factors change places evenly");

    // Shared memory, from the first multiple of 1024 on: the ring, then an mbarrier per stage.
    SharedAddress ring;
    int x, y;  // of the thread: the first of its columns is 4x, of its rows y
    __device__ __forceinline__ FfmaTmaTile() : ring((shared_base() + 1023) & ~1023u) {
        const int warp = warp_index(), lane = thread_index() % 32;
        // A warp has 8 x 4 threads: 16 lanes read 8 rows of A and two 16-byte chunks of B.
        x = warp % 2 * 4 + (lane & 1) + (lane >> 4) * 2, y = warp / 2 * 8 + (lane >> 1 & 7);
    }
    __device__ __forceinline__ static int warp_index() { return __shfl_sync(0xffffffffu, thread_index() / 32, 0); }
    __device__ __forceinline__ SharedAddress slot(int i) const { return ring + i * STAGE_BYTES; }
    __device__ __forceinline__ SharedAddress full(int i) const { return slot(STAGES) + 8 * i; }
    __device__ __forceinline__ SharedAddress of_a() const { return y * BK * 4 + (y & 7) * 16; }
    __device__ __forceinline__ SharedAddress of_b() const { return BYTES_A + x * 16; }
};

// The clobber keeps the loads from crossing barriers; ptxas still schedules them among the FMAs.
__device__ __forceinline__ void load_floats(float *to, SharedAddress from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3]) : "r"(from) : "memory");
}

__device__ __forceinline__ float load_float(SharedAddress from) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
    return value;
}

template <class Tile>
__device__ __forceinline__ void ffma_tma_matmul(const TensorMap &a, const TensorMap &b, float *c, long long m, long long k, long long n) {
    constexpr int TM = Tile::TM, TN = Tile::TN, STAGES = Tile::STAGES;
    const Tile tile;
    if (thread_index() == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(tile.full(i), 1);
        barriers_publish();
    }
    block_barrier();
    const TilePosition at = tile_position<Tile::BM, Tile::BN>(m, n, block_index());
    const int row = static_cast<int>(at.m) * Tile::BM, column = static_cast<int>(at.n) * Tile::BN;
    const int steps = static_cast<int>((k + Tile::BK - 1) / Tile::BK);
    const bool fills = Tile::warp_index() == 0 && elected();
    const auto fill = [&](int slot, int step) {
        barrier_expect(tile.full(slot), Tile::STAGE_BYTES);
        box_load(tile.slot(slot), a, row, step * Tile::BK, tile.full(slot));
        box_load(tile.slot(slot) + Tile::BYTES_A, b, step * Tile::BK, column, tile.full(slot));
    };
    if (fills) {
        for (int step = 0; step < STAGES && step < steps; step++) fill(step, step);
    }

    float sums[TM][TN] = {}, of_a[TM], of_b[2][TN];
    const auto load_b = [&](float(&to)[TN], SharedAddress from) {
#pragma unroll
        for (int q = 0; q < TN / 4; q++) load_floats(to + 4 * q, from + q * Tile::TX * 16);
    };
    PipelineState<STAGES> turn;
    barrier_wait(tile.full(0), 0);
    SharedAddress from_a = tile.slot(0) + tile.of_a(), from_b = tile.slot(0) + tile.of_b();
#pragma unroll
    for (int r = 0; r < TM; r++) of_a[r] = load_float(from_a + r * Tile::TY * Tile::BK * 4);
    load_b(of_b[0], from_b);
    for (int step = 0; step < steps; step++) {
        const int slot = turn.slot;
#pragma unroll 1
        for (int depth = 0; depth < Tile::BK; depth += Tile::TURN) {
#pragma unroll
            for (int i = 0; i < Tile::TURN; i++) {
                const int next = (i + 1) % Tile::TURN;
                if (next == 0) {
                    if (depth + Tile::TURN < Tile::BK) {
                        from_a = tile.slot(slot) + (tile.of_a() ^ (depth + Tile::TURN) * 4), from_b += Tile::TURN * Tile::BN * 4;
                    } else {  // after the last step the loads are not used
                        turn.next();
                        if (step + 1 < steps) barrier_wait(tile.full(turn.slot), turn.phase);
                        from_a = tile.slot(turn.slot) + tile.of_a(), from_b = tile.slot(turn.slot) + tile.of_b();
                    }
                }
                load_b(of_b[next % 2], from_b + next * Tile::BN * 4);
#pragma unroll
                for (int r = 0; r < TM; r++) {
#pragma unroll
                    for (int i_s = 0; i_s < TN; i_s++) {
                        const int s = r % 2 ? TN - 1 - i_s : i_s;
                        sums[r][s] = fused(of_a[r], of_b[i % 2][s], sums[r][s]);
                    }
                    of_a[r] = load_float((from_a ^ next * 4) + r * Tile::TY * Tile::BK * 4);  // the swizzle
                }
            }
        }
        block_barrier();  // all threads have read the slot
        if (fills && step + STAGES < steps) fill(slot, step + STAGES);
    }

    const unsigned as_it_is = m < 0 ? 0 : 0x3210;
    const long long i = row + tile.y, j = column + 4 * tile.x;
#pragma unroll
    for (int r = 0; r < TM; r++) {
        if (i + r * Tile::TY >= m) break;
#pragma unroll
        for (int q = 0; q < TN / 4; q++) {
            const Words4 v = apart(&sums[r][4 * q], as_it_is);
            store_row<true>(c + (i + r * Tile::TY) * n + j + q * Tile::TX * 4, v, static_cast<int>(n - j) - q * Tile::TX * 4);
        }
    }
}
