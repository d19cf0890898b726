// What the kernels for rows that begin anywhere ask of the machine beyond hopper.cuh and wgmma_tf32.cuh (sm_90a).
#pragma once
#include "matmul/kernels/wgmma_tf32.cuh"

__device__ __forceinline__ unsigned load_half(SharedAddress from) {
    unsigned short x;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(from) : "memory");
    return x;
}
__device__ __forceinline__ void store_shared_16(SharedAddress to, unsigned x, unsigned y, unsigned z, unsigned w) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
__device__ __forceinline__ void store_word(SharedAddress to, unsigned x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ __forceinline__ float from_lane_beside(float x) { return __shfl_xor_sync(0xffffffffu, x, 1); }

// c += f a for 64 columns and N rows of C: f, of B, from registers; a from shared memory, both along k. c as hopper.cuh has it,
// transposed. TF32: k = 8, as transposed_product. 16 bits: k = 16; f: of thread t of warp w, columns 16 w + t / 4 and 8 on, of rows
// 2 (t % 4) and the next, then of the rows 8 below.
#define SUMS_8(c, i) SUMS_4(c, i), SUMS_4(c, i + 4)
#define SUMS_20(c, i) SUMS_16(c, i), SUMS_4(c, i + 16)
#define REGISTERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define REGISTERS_20 REGISTERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19"
#define ODD_PRODUCT(Storage, type, rows, sums, f0, f1, f2, f3, factor_a, added)                                                            \
    __device__ __forceinline__ void odd_product(float (&c)[sums], const unsigned *f, unsigned long long a, int add, Storage) {             \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" added ", 0;\n"                                                               \
                     "wgmma.mma_async.sync.aligned.m64n" rows "k16.f32." type "." type " {" REGISTERS_##sums "}, {%" f0 ", %" f1 ", %" f2  \
                     ", %" f3 "}, %" factor_a ", add, 1, 1, 0;\n}"                                                                         \
                     : SUMS_##sums(c, 0)                                                                                                   \
                     : "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3]), "l"(a), "r"(add)                                                        \
                     : "memory");                                                                                                          \
    }
#define ODD_PRODUCTS(Storage, type)                                                                                                        \
    ODD_PRODUCT(Storage, type, "16", 8, "8", "9", "10", "11", "12", "13")                                                                  \
    ODD_PRODUCT(Storage, type, "40", 20, "20", "21", "22", "23", "24", "25")                                                               \
    ODD_PRODUCT(Storage, type, "64", 32, "32", "33", "34", "35", "36", "37")                                                               \
    ODD_PRODUCT(Storage, type, "128", 64, "64", "65", "66", "67", "68", "69")                                                              \
    ODD_PRODUCT(Storage, type, "256", 128, "128", "129", "130", "131", "132", "133")
ODD_PRODUCTS(float16, "f16")
ODD_PRODUCTS(bfloat16, "bf16")
TF32_PRODUCT("16", 8, "8", "9", "10", "11", "12", "13")
TF32_PRODUCT("40", 20, "20", "21", "22", "23", "24", "25")
template <int SUMS> __device__ __forceinline__ void odd_product(float (&c)[SUMS], const unsigned *f, unsigned long long a, int add, float) {
    transposed_product(c, f, a, add);
}
