// The copy engine on matrices whose rows begin anywhere (sm_90a). It wants a first address, a distance of rows and a box's first column in
// multiples of 16 bytes. Rows r, r + C, r + 2C, ... are C times as far apart as rows are, which is such a multiple for C * element bytes =
// 16: so the rows of each class r % C are a matrix of their own, told by a map of its own. It begins at the last multiple of 16 before its
// first row, `shift` elements early, and ends with its rows: what lies behind is 0, exactly, as of any map. In shared memory, too, an
// element of such a row lies `shift` further on than its column says, so boxes are 16 bytes wider than what is wanted of them.
#pragma once
#include "matmul/common/tma.cuh"

// A map lies on 128 bytes, where the copy engine takes it from.
template <int CLASSES> struct alignas(128) ResidueMaps {
    TensorMap map[CLASSES];
    int shift[32];
};

// A box of each class: rows row + c, row + c + CLASSES, ... to `to` + c * BOX_BYTES. `row` is a multiple of CLASSES, `column` of 16 bytes.
template <int BOX_BYTES, int CLASSES>
__device__ __forceinline__ void boxes_load(SharedAddress to, const ResidueMaps<CLASSES> &rows, int row, int column, SharedAddress barrier) {
#pragma unroll
    for (int c = 0; c < CLASSES; c++) box_load(to + c * BOX_BYTES, rows.map[c], row / CLASSES, column, barrier);
}
template <int CLASSES> __device__ __forceinline__ int shift_of(const ResidueMaps<CLASSES> &rows, int c) { return rows.shift[c]; }
// Where one map is enough.
template <int BOX_BYTES>
__device__ __forceinline__ void boxes_load(SharedAddress to, const TensorMap &map, int row, int column, SharedAddress barrier) {
    box_load(to, map, row, column, barrier);
}
__device__ __forceinline__ int shift_of(const TensorMap &, int) { return 0; }
