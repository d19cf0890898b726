// Of A one row, for one lane of skinny_n.cuh: 16 bytes a step, from wherever the row begins.
#pragma once
#include "matmul/kernels/tile.cuh"

// Elements of a lane's DEEP of K, from there on, that lie before its end: all or none, where rows begin on 16 bytes.
template <class Tile> __device__ __forceinline__ int left_of_lane(long long from, long long k) {
    if constexpr (Tile::GRANULE_A == 16)
        return from < k ? Tile::DEEP : 0;
    else
        return least(k - from, Tile::DEEP);
}

template <class Tile, bool ANYWHERE = Tile::GRANULE_A == 1> struct RowOfA;

// Rows begin on GRANULE_A bytes.
template <class Tile> struct RowOfA<Tile, false> {
    using Storage = typename Tile::Storage;
    using Raw = uint4;
    const Storage *row;

    __device__ __forceinline__ void begin(const Storage *at, const Storage *) { row = at; }
    __device__ __forceinline__ Raw fetch(long long now, int left) const {
        return piece_of_row<Tile::GRANULE_A>(row + now, left * static_cast<int>(sizeof(Storage)));
    }
    __device__ __forceinline__ uint4 piece(const Raw &raw, int) const { return raw; }
};

// Rows of 16 bits begin anywhere, A on 16 bytes: the two pieces on 16 bytes that hold a lane's, and what of them it is.
template <class Tile> struct RowOfA<Tile, true> {
    using Storage = typename Tile::Storage;
    static_assert(sizeof(Storage) == 2);
    struct Raw {
        uint4 low, high;
    };
    const char *row, *end;  // where the lane's first piece on 16 bytes begins; where A ends
    int behind;             // bytes by which the row begins behind it

    __device__ __forceinline__ void begin(const Storage *at, const Storage *a_end) {
        behind = static_cast<int>(reinterpret_cast<unsigned long long>(at) & 15);
        row = reinterpret_cast<const char *>(at) - behind, end = reinterpret_cast<const char *>(a_end);
    }
    __device__ __forceinline__ Raw fetch(long long now, int left) const {
        const char *from = row + 2 * now;
        const bool any = left > 0, more = behind + 2 * left > 16;
        if (end - from < 32) return cut_off(from);
        const uint4 *pieces = reinterpret_cast<const uint4 *>(from), none = make_uint4(0, 0, 0, 0);
        return {any ? pieces[0] : none, more ? pieces[1] : none};
    }
    // What A's end cuts off goes by twice two elements, from behind: few rows come here, once, and unrolled it would be in all others' way.
    __device__ __forceinline__ Raw cut_off(const char *from) const {
        const auto at = [&](int i) { return from + 2 * i < end ? bits_of(*reinterpret_cast<const Storage *>(from + 2 * i)) : 0; };
        unsigned words[8] = {};
#pragma unroll 1
        for (int i = 12; i >= 0; i -= 4) {
#pragma unroll
            for (int w = 7; w > 1; w--) words[w] = words[w - 2];
            words[0] = at(i) | at(i + 1) << 16, words[1] = at(i + 2) | at(i + 3) << 16;
        }
        return {make_uint4(words[0], words[1], words[2], words[3]), make_uint4(words[4], words[5], words[6], words[7])};
    }
    __device__ __forceinline__ uint4 piece(const Raw &raw, int left) const {
        unsigned words[8] = {raw.low.x, raw.low.y, raw.low.z, raw.low.w, raw.high.x, raw.high.y, raw.high.z, raw.high.w};
#pragma unroll
        for (int i = 0; i < 6; i++) words[i] = behind & 8 ? words[i + 2] : words[i];
#pragma unroll
        for (int i = 0; i < 5; i++) words[i] = behind & 4 ? words[i + 1] : words[i];
        unsigned kept[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const unsigned word = down_by(words[i], words[i + 1], 8 * (behind & 2));
            const int before = left - 2 * i;  // elements that lie before K's end
            kept[i] = before <= 0 ? 0 : before == 1 ? word & 0xffffu : word;
        }
        return make_uint4(kept[0], kept[1], kept[2], kept[3]);
    }
};
