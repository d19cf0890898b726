// Swizzles of tiles in shared memory, which avoid bank conflicts; and loads at the ends of rows.
#pragma once
#include "common/ptx.cuh"

// Rows of ROW_BYTES without padding. A row's 16-byte chunks are permuted by an XOR with bits of the row's number, so that 8 rows read
// together (ldmatrix) or 8 chunks written together (cp.async) use all 32 banks. Two rows of 64 bytes share the 32 banks.
template <int ROW_BYTES> struct ByRow {
    __device__ __forceinline__ static unsigned at(int row, int byte) {
        const int flip = ROW_BYTES >= 128 ? row & 7 : ROW_BYTES == 64 ? (row >> 1) & 3 : 0;
        return row * ROW_BYTES + (byte ^ (flip << 4));
    }
};

// For 8 lanes that read 16 bytes each: two neighbouring chunks, which stay neighbours, of each of 4 consecutive rows.
template <int ROW_BYTES> struct ByRowPairs {
    static_assert(ROW_BYTES >= 128, "8 chunks of a row take part");
    __device__ __forceinline__ static unsigned at(int row, int byte) { return row * ROW_BYTES + (byte ^ ((row & 3) << 5)); }
};

// For reads of 16 bytes from each of 8 rows that are 4 apart.
template <int ROW_BYTES> struct ByRowFours {
    static_assert(ROW_BYTES >= 128, "8 chunks of a row take part");
    __device__ __forceinline__ static unsigned at(int row, int byte) { return row * ROW_BYTES + (byte ^ ((row >> 2 & 7) << 4)); }
};

// std::conditional.
template <bool FIRST, class A, class B> struct Either {
    using type = A;
};
template <class A, class B> struct Either<false, A, B> {
    using type = B;
};

__device__ __forceinline__ int least(long long a, int b) { return a < b ? static_cast<int>(a) : b; }

// 16 bytes of a row, of which `left` are before its end; zeros beyond it. The address and `left` are multiples of BYTES (16, 8 or 4).
template <int BYTES> __device__ __forceinline__ uint4 piece_of_row(const void *from, int left) {
    if constexpr (BYTES == 16) {
        return left > 0 ? *static_cast<const uint4 *>(from) : make_uint4(0, 0, 0, 0);
    } else if constexpr (BYTES == 8) {
        const uint2 *two = static_cast<const uint2 *>(from), none = make_uint2(0, 0);
        const uint2 low = left > 0 ? two[0] : none, high = left > 8 ? two[1] : none;
        return make_uint4(low.x, low.y, high.x, high.y);
    } else {
        const unsigned *words = static_cast<const unsigned *>(from);
        return make_uint4(left > 0 ? words[0] : 0, left > 4 ? words[1] : 0, left > 8 ? words[2] : 0, left > 12 ? words[3] : 0);
    }
}
