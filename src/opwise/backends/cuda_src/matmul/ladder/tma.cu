// The rung below wgmma.cuh, on Hopper, 16 bits: TMA brings tiles of A and B into shared memory, wgmma multiplies them from there.
//
// matmul_ladder_tma_<dtype>: A and B come as tensor maps, boxes of 128 and 64 rows by 64 columns, swizzled by 128 bytes; C as an address. A
// block computes one 128 x 128 tile of C, its two warpgroups 64 rows each. One thread asks for the tiles, so that nobody else spends
// instructions on copies; STAGES of them are under way. What is left to gain: the block waits for its first tiles and while it stores C
// (the persistent kernel goes on to its next tile), and all threads wait for each other at every step (a producer warpgroup needs not).
#include "common/one_kernel.cuh"
#include "matmul/common/wgmma.cuh"
#include "matmul/kernels/tile.cuh"

constexpr int BM = 128, BN = 128, BK = 64, STAGES = 4;
constexpr int BYTES_A = BM * BK * 2, BOX_B = BK * 64 * 2, STAGE_BYTES = BYTES_A + BN / 64 * BOX_B;  // B in boxes of 64 columns

template <class Storage>
__device__ __forceinline__ void tma_matmul(const TensorMap &a, const TensorMap &b, Storage *c, long long m, long long k, long long n) {
    const SharedAddress ring = (shared_base() + 1023) & ~1023u, full = ring + STAGES * STAGE_BYTES;  // the swizzle goes by address
    const TilePosition at = tile_position<BM, BN>(m, n, block_index());
    const int row = static_cast<int>(at.m) * BM, column = static_cast<int>(at.n) * BN, steps = static_cast<int>((k + BK - 1) / BK);
    const bool asks = thread_index() == 0;
    if (asks) {
        for (int i = 0; i < STAGES; i++) barrier_init(full + 8 * i, 1);
        barriers_publish();
    }
    block_barrier();
    const auto fetch = [&](int step) {
        const SharedAddress stage = ring + step % STAGES * STAGE_BYTES, barrier = full + step % STAGES * 8;
        barrier_expect(barrier, STAGE_BYTES);  // what lies outside of A and B counts too, and is zero
        box_load(stage, a, row, step * BK, barrier);
        for (int box = 0; box < BN / 64; box++) box_load(stage + BYTES_A + box * BOX_B, b, step * BK, column + 64 * box, barrier);
    };
    for (int step = 0; step < STAGES && step < steps; step++)
        if (asks) fetch(step);

    const int warpgroup = warpgroup_index();
    float sums[BN / 2];
    for (int step = 0; step < steps; step++) {
        const SharedAddress stage = ring + step % STAGES * STAGE_BYTES;
        barrier_wait(full + step % STAGES * 8, step / STAGES % 2);
        const unsigned long long of_a = factor(stage + warpgroup * 64 * 128, 1024, 0), of_b = factor(stage + BYTES_A, 1024, BOX_B);
        products_begin();
#pragma unroll
        for (int i = 0; i < BK / 16; i++)  // 16 elements of K are 32 bytes of a row of A, 16 rows of B
            warpgroup_product(sums, further(of_a, 32 * i), further(of_b, 16 * 128 * i), step + i > 0, Storage{});
        products_commit();
        products_wait<0>();
        block_barrier();  // both warpgroups have read the stage
        if (asks && step + STAGES < steps) fetch(step + STAGES);
    }
    // A thread has of 8 columns two that lie side by side, of two rows (wgmma.cuh of common says which).
    const int lane = thread_index() % 32, first = row + warpgroup * 64 + thread_index() / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        const long long y = first + i / 2 % 2 * 8, x = column + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (y < m && x < n) from_float(sums[i], c[y * n + x]);
    }
}

#define KERNEL(Storage)                                                                                                                    \
    IF_WANTED(matmul_ladder_tma_##Storage,                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256) matmul_ladder_tma_##Storage(                                                         \
            const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, Storage *c, long long m, long long k, long long n) { \
        tma_matmul(a, b, c, m, k, n);                                                                                                      \
    })
KERNEL(float16)
KERNEL(bfloat16)
