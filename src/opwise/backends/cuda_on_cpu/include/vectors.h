// CUDA's vector types, with their alignments.
#pragma once

#define OPWISE_VECTORS(type, name, of_2, of_4)                                                                                             \
    struct alignas(of_2) name##2 {                                                                                                        \
        type x, y;                                                                                                                         \
    };                                                                                                                                     \
    struct name##3 {                                                                                                                       \
        type x, y, z;                                                                                                                      \
    };                                                                                                                                     \
    struct alignas(of_4) name##4 {                                                                                                        \
        type x, y, z, w;                                                                                                                   \
    };                                                                                                                                     \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; }                                                                       \
    inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }                                                            \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
OPWISE_VECTORS(char, char, 2, 4)
OPWISE_VECTORS(unsigned char, uchar, 2, 4)
OPWISE_VECTORS(short, short, 4, 8)
OPWISE_VECTORS(unsigned short, ushort, 4, 8)
OPWISE_VECTORS(int, int, 8, 16)
OPWISE_VECTORS(unsigned, uint, 8, 16)
OPWISE_VECTORS(float, float, 8, 16)
OPWISE_VECTORS(long long, longlong, 16, 16)
OPWISE_VECTORS(unsigned long long, ulonglong, 16, 16)
OPWISE_VECTORS(double, double, 16, 16)
#undef OPWISE_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
