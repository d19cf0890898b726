// Short unaligned rows, staged in shared memory (backends/staged_rows.py): a block's rows are contiguous, and are read and written together
// in 16-byte pieces. A row has LANES neighbouring lanes, a power of two, of ELEMENTS elements each.
#pragma once
#include "common/elements.cuh"
#include "common/ptx.cuh"

constexpr int SHORT_THREADS = 128;

// A block has `height` rows and begins on 16 bytes, as x and out do. Neighbouring groups of lanes take rows that are `turn` apart.
template <class Storage, int LANES, int ELEMENTS>
__device__ __forceinline__ void softmax_short(const Storage *x, Storage *out, long long rows, long long columns, long long height,
                                              long long turn) {
    constexpr int EACH = 16 / sizeof(Storage), GROUPS = SHORT_THREADS / LANES;
    extern __shared__ uint4 staged[];
    auto *tile = reinterpret_cast<Storage *>(staged);
    const long long first = blockIdx.x * height;
    const int width = static_cast<int>(columns), mine = static_cast<int>(min(height, rows - first));
    const int count = mine * width, pieces = count / EACH, thread = threadIdx.x;  // the last block may end within a piece
    const Storage *from = x + first * columns;
    for (int i = thread; i < pieces; i += SHORT_THREADS) copy_async<16>(shared_address(staged + i), from + i * EACH, true);
    for (int i = pieces * EACH + thread; i < count; i += SHORT_THREADS) tile[i] = from[i];
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    for (int above = 0; above < mine; above += GROUPS) {  // whole warps take part; a row beyond the last one is -inf
        const int row = above + thread / LANES * static_cast<int>(turn) % GROUPS, here = row < mine ? width : 0;
        RowInRegisters<Storage, sizeof(Storage), ELEMENTS> part;
        part.load(tile + row * width, thread % LANES, LANES, here);
        const float shift = shift_of(over_lanes<Maximum>(part.maximum(), LANES));
        const float sum = over_lanes<Sum>(part.exponentiate(shift, LANES, here), LANES);
        part.store(tile + row * width, thread % LANES, LANES, here, 1.0f / sum);
    }
    __syncthreads();
    Storage *to = out + first * columns;
#pragma unroll 4
    for (int i = thread; i < pieces; i += SHORT_THREADS) reinterpret_cast<uint4 *>(to)[i] = staged[i];
    for (int i = pieces * EACH + thread; i < count; i += SHORT_THREADS) to[i] = tile[i];
}

#define SOFTMAX_SHORT_KERNEL(dtype, Storage, lanes, elements)                                                                              \
    IF_WANTED(softmax_##dtype##_short##lanes##x##elements,                                                                                 \
    extern "C" __global__ void __launch_bounds__(SHORT_THREADS)                                                                            \
        softmax_##dtype##_short##lanes##x##elements(const Storage *__restrict__ x, Storage *__restrict__ out, long long rows,              \
                                                    long long columns, long long height, long long turn) {                                 \
        softmax_short<Storage, lanes, elements>(x, out, rows, columns, height, turn);                                                      \
    })
