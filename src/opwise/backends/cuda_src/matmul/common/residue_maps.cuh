// TMA on matrices with unaligned rows (sm_90a). A tensor map's base address, its row pitch and a box's first column must be multiples of
// 16 bytes. The pitch between rows r, r + C, r + 2C, ... is such a multiple for C = 16 / element bytes. So the rows of each residue class
// r % C are a matrix with its own tensor map. Its base is the last multiple of 16 at or before its first row, `shift` elements early; its
// last column is the rows' last, beyond which zeros are read. In shared memory, too, an element is `shift` places after its column, so
// boxes are 16 bytes wider than the tile.
#pragma once
#include "matmul/common/tma.cuh"

// Maps are aligned to 128 bytes in the parameter space.
template <int CLASSES> struct alignas(128) ResidueMaps {
    TensorMap map[CLASSES];
    int shift[32];
};

// A box of each class c: rows row + c, row + c + CLASSES, ... to `to` + c * BOX_BYTES. CLASSES divides row, 16 bytes column.
template <int BOX_BYTES, int CLASSES>
__device__ __forceinline__ void boxes_load(SharedAddress to, const ResidueMaps<CLASSES> &rows, int row, int column, SharedAddress barrier) {
#pragma unroll
    for (int c = 0; c < CLASSES; c++) box_load(to + c * BOX_BYTES, rows.map[c], row / CLASSES, column, barrier);
}
template <int CLASSES> __device__ __forceinline__ int shift_of(const ResidueMaps<CLASSES> &rows, int c) { return rows.shift[c]; }
// For aligned rows, with one map.
template <int BOX_BYTES>
__device__ __forceinline__ void boxes_load(SharedAddress to, const TensorMap &map, int row, int column, SharedAddress barrier) {
    box_load(to, map, row, column, barrier);
}
__device__ __forceinline__ int shift_of(const TensorMap &, int) { return 0; }
