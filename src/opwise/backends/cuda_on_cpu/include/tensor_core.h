// ldmatrix and mma.sync. The PTX manual's figures of these instructions show which elements a lane holds.
// Products are added in double precision and rounded once: a tensor core's truncation does not show here.
#pragma once

namespace cpu {

inline void whole_warp(void **all, const char *what) {
    for (int i = 0; i < 32; i++) {
        if (all[i] == nullptr) report("%s without lane %d, which is not there: a whole warp is taken", what, i);
    }
}

struct MatrixLoad {
    std::uint32_t row;
    unsigned got[4];
};
template <bool TRANSPOSED> void load_all(void **all) {
    whole_warp(all, "ldmatrix");
    for (int i = 0; i < 4; i++) {
        unsigned short matrix[8][8];
        for (int row = 0; row < 8; row++) {
            const auto address = static_cast<MatrixLoad *>(all[8 * i + row])->row;
            if (address % 16 != 0) report("ldmatrix: lane %d gives byte %u, not a multiple of 16", 8 * i + row, address);
            std::memcpy(matrix[row], from_shared_address(address, 16, false), 16);
        }
        for (int lane = 0; lane < 32; lane++) {
            const int a = lane / 4, b = 2 * (lane % 4);
            const unsigned low = TRANSPOSED ? matrix[b][a] : matrix[a][b], high = TRANSPOSED ? matrix[b + 1][a] : matrix[a][b + 1];
            static_cast<MatrixLoad *>(all[lane])->got[i] = low | high << 16;
        }
    }
}
template <bool TRANSPOSED> inline void load_four(unsigned &a, unsigned &b, unsigned &c, unsigned &d, std::uint32_t row) {
    MatrixLoad mine{row, {}};
    meet(0xffffffffu, &load_all<TRANSPOSED>, &mine, "ldmatrix");
    a = mine.got[0], b = mine.got[1], c = mine.got[2], d = mine.got[3];
}

struct Product {
    unsigned a[4], b[2];
    float c[4];
};
template <int K> void add_products(void **all, const float *a, const float *b) {  // a: 16 x K, b: K x 8
    for (int lane = 0; lane < 32; lane++) {
        auto *p = static_cast<Product *>(all[lane]);
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
            double sum = p->c[i];
            for (int k = 0; k < K; k++) sum += static_cast<double>(a[row * K + k]) * b[k * 8 + column];
            p->c[i] = static_cast<float>(sum);
        }
    }
}
// 16-bit: K = 16, two elements a register. TF32: K = 8, one element a register, whose low 13 bits are ignored.
template <float (*widen)(unsigned short)> void multiply_16(void **all) {
    whole_warp(all, "mma.sync");
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const auto *p = static_cast<const Product *>(all[lane]);
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) {
            for (int half = 0; half < 2; half++) {
                const int k = 2 * t + half + 8 * (i / 2);
                a[g + 8 * (i % 2)][k] = widen(static_cast<unsigned short>(p->a[i] >> 16 * half));
                if (i < 2) b[2 * t + half + 8 * i][g] = widen(static_cast<unsigned short>(p->b[i] >> 16 * half));
            }
        }
    }
    add_products<16>(all, &a[0][0], &b[0][0]);
}
inline void multiply_tf32(void **all) {
    whole_warp(all, "mma.sync");
    float a[16][8], b[8][8];
    for (int lane = 0; lane < 32; lane++) {
        const auto *p = static_cast<const Product *>(all[lane]);
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) a[g + 8 * (i % 2)][t + 4 * (i / 2)] = bits_as<float>(p->a[i] & ~0x1fffu);
        for (int i = 0; i < 2; i++) b[t + 4 * i][g] = bits_as<float>(p->b[i] & ~0x1fffu);
    }
    add_products<8>(all, &a[0][0], &b[0][0]);
}

namespace ptx {
inline void ldmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned &a, unsigned &b, unsigned &c, unsigned &d, std::uint32_t row) {
    load_four<false>(a, b, c, d, row);
}
inline void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(unsigned &a, unsigned &b, unsigned &c, unsigned &d, std::uint32_t row) {
    load_four<true>(a, b, c, d, row);
}
#define OPWISE_MMA(name, act)                                                                                                              \
    inline void name(float &d0, float &d1, float &d2, float &d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,          \
                     unsigned b1, float c0, float c1, float c2, float c3) {                                                                \
        Product mine{{a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}};                                                                        \
        meet(0xffffffffu, act, &mine, "mma.sync");                                                                                         \
        d0 = mine.c[0], d1 = mine.c[1], d2 = mine.c[2], d3 = mine.c[3];                                                                    \
    }
OPWISE_MMA(mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, &multiply_16<float_of_half>)
OPWISE_MMA(mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, &multiply_16<float_of_bfloat>)
OPWISE_MMA(mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32, &multiply_tf32)
#undef OPWISE_MMA
}  // namespace ptx
}  // namespace cpu
