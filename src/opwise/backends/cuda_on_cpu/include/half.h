// Conversions to and from the 16-bit formats and TF32: rounded to nearest, NaN with the GPU's bits.
#pragma once

namespace cpu {

inline float float_of_half(unsigned short h) {
    const unsigned sign = (h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) return bits_as<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x400u) return bits_as<float>(sign | ((magnitude << 13) + (112u << 23)));
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    return sign ? -subnormal : subnormal;
}
// Ties to even; NaN is 0x7fff; infinity from 65520 on.
inline unsigned short half_of_float(float x) {
    const unsigned bits = bits_as<unsigned>(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;
    if (magnitude >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);
    if (magnitude < 0x38800000u)  // subnormal: 1/2 has the same last place, so this addition rounds
        return static_cast<unsigned short>(sign | (bits_as<unsigned>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u));
    return static_cast<unsigned short>(sign | (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
}

inline float float_of_bfloat(unsigned short b) { return bits_as<float>(static_cast<unsigned>(b) << 16); }
inline unsigned short bfloat_of_float(float x) {
    const unsigned bits = bits_as<unsigned>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// Ties away from zero, as cvt.rna.
inline unsigned tf32_of_float(float x) {
    const unsigned bits = bits_as<unsigned>(x);
    if ((bits & 0x7f800000u) == 0x7f800000u) return bits & 0x7fffffu ? 0x7fffffffu : bits;
    return (bits + 0x1000u) & ~0x1fffu;
}

// The maximum of two; a number wins over NaN, +0 over -0.
template <float (*widen)(unsigned short)> inline unsigned short greater_16(unsigned short a, unsigned short b) {
    const float x = widen(a), y = widen(b);
    if (x != x && y != y) return 0x7fff;
    if (x != x) return b;
    if (y != y) return a;
    if (x == y) return a & b & 0x8000u ? a : a & 0x8000u ? b : a;
    return x > y ? a : b;
}

}  // namespace cpu
