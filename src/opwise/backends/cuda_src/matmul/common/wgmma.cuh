// wgmma (sm_90a) for 16-bit types and TF32, and other instructions for warpgroups.
//
// As in tma.cuh, everything is volatile and clobbers memory.
#pragma once
#include "matmul/common/tma.cuh"

// ---- warpgroups ------------------------------------------------------------------------------------------------------------------

// This thread's warpgroup. The shuffle makes the number warp-uniform for the compiler, so that addresses stay in uniform registers, which
// wgmma and TMA need.
__device__ __forceinline__ int warpgroup_index() { return __shfl_sync(0xffffffffu, thread_index() / 128, 0); }
__device__ __forceinline__ int warp_index() { return __shfl_sync(0xffffffffu, thread_index() / 32, 0); }
// True in one lane of the warp; all lanes must call it. Unlike `lane == 0` the compiler knows that it is one lane, and issues TMA copies
// without a loop over lanes.
__device__ __forceinline__ bool elected() {
    unsigned mine;
    asm volatile("{\n"
                 ".reg .pred one;\n"
                 "elect.sync _|one, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, one;\n"
                 "}"
                 : "=r"(mine));
    return mine;
}
// A named barrier of THREADS threads, of one or several warpgroups; id 0 is __syncthreads's.
template <int THREADS = 128> __device__ __forceinline__ void warpgroup_barrier(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}
// Arrives at a warpgroup_barrier of as many threads without waiting.
template <int THREADS> __device__ __forceinline__ void warpgroup_let(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

// Moves registers from the producer warpgroup to the consumers. Takes effect only with __launch_bounds__(threads, 1).
template <int COUNT> __device__ __forceinline__ void registers_release() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void registers_claim() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }

// Four 8x8 matrices of 16-bit elements to shared memory: the inverse of load_matrices.
__device__ __forceinline__ void store_matrices(SharedAddress row, const unsigned (&f)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3])
                 : "memory");
}

// The same with each matrix transposed: a lane gives the address of a column of its matrix.
__device__ __forceinline__ void store_matrices_transposed(SharedAddress column, const unsigned (&f)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(column), "r"(f[0]), "r"(f[1]), "r"(f[2]),
                 "r"(f[3])
                 : "memory");
}

// ---- wgmma: c += a b for 64 rows, N columns and k = 16, by the 128 threads of a warpgroup, both factors in shared memory ----------------

// The matrix descriptor of a factor. apart, columns_apart: bytes between groups of 8 rows and, for b, between tiles of 64 columns.
// ROW_BYTES: the swizzle, 128, or 64 for a b in tiles of 32 columns. Addresses must be below 256 KiB and multiples of 16.
template <int ROW_BYTES = 128>
__device__ __forceinline__ unsigned long long factor(SharedAddress tile, unsigned apart, unsigned columns_apart) {
    static_assert(ROW_BYTES == 128 || ROW_BYTES == 64);
    constexpr unsigned long long SWIZZLED = (ROW_BYTES == 128 ? 1ull : 2ull) << 62;
    return SWIZZLED | static_cast<unsigned long long>(apart / 16) << 32 | static_cast<unsigned long long>(columns_apart / 16) << 16 |
           (tile & 0x3ffff) / 16;
}
// The descriptor `bytes` further on. The addition to the low word does not carry.
__device__ __forceinline__ unsigned long long further(unsigned long long factor, unsigned bytes) {
    return factor >> 32 << 32 | (static_cast<unsigned>(factor) + bytes / 16);
}
// Orders earlier writes to registers before the wgmmas that follow.
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// warpgroup_product: a is row-major along k, b along its columns; swapped_product: the other way round, for c' = b' a';
// product_along_k: both along k. Thread t of warp w holds of c, for j in 0 .. N / 8, in c[4j], c[4j + 1] row 16w + t / 4, columns 8j + 2
// (t % 4) and the next, and in c[4j + 2], c[4j + 3] the same 8 rows below. add = 0: c = a b.
#define SUMS_4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define SUMS_8(c, i) SUMS_4(c, i), SUMS_4(c, i + 4)
#define SUMS_16(c, i) SUMS_4(c, i), SUMS_4(c, i + 4), SUMS_4(c, i + 8), SUMS_4(c, i + 12)
#define SUMS_20(c, i) SUMS_16(c, i), SUMS_4(c, i + 16)
#define SUMS_32(c, i) SUMS_16(c, i), SUMS_16(c, i + 16)
#define SUMS_48(c, i) SUMS_32(c, i), SUMS_16(c, i + 32)
#define SUMS_64(c, i) SUMS_32(c, i), SUMS_32(c, i + 32)
#define SUMS_72(c, i) SUMS_64(c, i), SUMS_8(c, i + 64)
#define SUMS_80(c, i) SUMS_64(c, i), SUMS_16(c, i + 64)
#define SUMS_96(c, i) SUMS_64(c, i), SUMS_32(c, i + 64)
#define SUMS_128(c, i) SUMS_64(c, i), SUMS_64(c, i + 64)
#define REGISTERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_20 REGISTERS_16 ", %16, %17, %18, %19"
#define REGISTERS_32 REGISTERS_16 ", "                                                                                                     \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_48 REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_64 REGISTERS_32 ", "                                                                                                     \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                                                     \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_72 REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define REGISTERS_80 REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define REGISTERS_96 REGISTERS_80 ", "                                                                                                     \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define REGISTERS_128 REGISTERS_96 ", "                                                                                                    \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "                                         \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define PRODUCT(name, along_columns, Storage, type, columns, sums, factor_a, factor_b, added)                                              \
    __device__ __forceinline__ void name(float (&c)[sums], unsigned long long a, unsigned long long b, int add, Storage) {                 \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" added ", 0;\n"                                                               \
                     "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" REGISTERS_##sums "}, %"                     \
                     factor_a ", %" factor_b ", add, 1, 1, " along_columns ";\n}"                                                          \
                     : SUMS_##sums(c, 0)                                                                                                   \
                     : "l"(a), "l"(b), "r"(add)                                                                                            \
                     : "memory");                                                                                                          \
    }
#define PRODUCTS(Storage, type)                                                                                                            \
    PRODUCT(warpgroup_product, "0, 1", Storage, type, "32", 16, "16", "17", "18")                                                          \
    PRODUCT(warpgroup_product, "0, 1", Storage, type, "64", 32, "32", "33", "34")                                                          \
    PRODUCT(warpgroup_product, "0, 1", Storage, type, "96", 48, "48", "49", "50")                                                          \
    PRODUCT(warpgroup_product, "0, 1", Storage, type, "128", 64, "64", "65", "66")                                                         \
    PRODUCT(swapped_product, "1, 0", Storage, type, "16", 8, "8", "9", "10")                                                               \
    PRODUCT(swapped_product, "1, 0", Storage, type, "144", 72, "72", "73", "74")                                                           \
    PRODUCT(warpgroup_product, "0, 1", Storage, type, "160", 80, "80", "81", "82")                                                         \
    PRODUCT(warpgroup_product, "0, 1", Storage, type, "192", 96, "96", "97", "98")                                                         \
    PRODUCT(warpgroup_product, "0, 1", Storage, type, "256", 128, "128", "129", "130")                                                     \
    PRODUCT(product_along_k, "0, 0", Storage, type, "64", 32, "32", "33", "34")                                                            \
    PRODUCT(product_along_k, "0, 0", Storage, type, "128", 64, "64", "65", "66")                                                           \
    PRODUCT(product_along_k, "0, 0", Storage, type, "160", 80, "80", "81", "82")                                                           \
    PRODUCT(product_along_k, "0, 0", Storage, type, "192", 96, "96", "97", "98")                                                           \
    PRODUCT(product_along_k, "0, 0", Storage, type, "256", 128, "128", "129", "130")
PRODUCTS(float16, "f16")
PRODUCTS(bfloat16, "bf16")

// The descriptor of b, row-major in tiles of ROW_BYTES that are `apart`, or with K along its rows as a; and the product with it.
template <bool ALONG_K, int ROW_BYTES> __device__ __forceinline__ unsigned long long factor_b(SharedAddress tile, unsigned apart) {
    if constexpr (ALONG_K) return factor(tile, 1024, 0);
    return factor<ROW_BYTES>(tile, 8 * ROW_BYTES, apart);
}
template <bool ALONG_K, int SUMS, class Storage>
__device__ __forceinline__ void multiply_by(float (&c)[SUMS], unsigned long long a, unsigned long long b, int add, Storage storage) {
    if constexpr (ALONG_K)
        product_along_k(c, a, b, add, storage);
    else
        warpgroup_product(c, a, b, add, storage);
}

// c += f a for 64 columns and N rows of C and k = 8; c as above, transposed. f, of thread t of warp w: B's row t % 4 in columns
// 16w + t / 4 and 8 further, then the row 4 below in the same columns.
#define TF32_PRODUCT(rows, sums, f0, f1, f2, f3, factor_a, added)                                                                          \
    __device__ __forceinline__ void transposed_product(float (&c)[sums], const unsigned *f, unsigned long long a, int add) {               \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" added ", 0;\n"                                                               \
                     "wgmma.mma_async.sync.aligned.m64n" rows "k8.f32.tf32.tf32 {" REGISTERS_##sums "}, {%" f0 ", %" f1 ", %" f2 ", %" f3  \
                     "}, %" factor_a ", add, 1, 1;\n}"                                                                                     \
                     : SUMS_##sums(c, 0)                                                                                                   \
                     : "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3]), "l"(a), "r"(add)                                                        \
                     : "memory");                                                                                                          \
    }
TF32_PRODUCT("40", 20, "20", "21", "22", "23", "24", "25")
TF32_PRODUCT("64", 32, "32", "33", "34", "35", "36", "37")
TF32_PRODUCT("128", 64, "64", "65", "66", "67", "68", "69")
TF32_PRODUCT("192", 96, "96", "97", "98", "99", "100", "101")
TF32_PRODUCT("256", 128, "128", "129", "130", "131", "132", "133")

// c += f a for 64 columns and N rows of C; f, of B, from registers, a from shared memory. c as above, transposed. TF32: transposed_product.
// 16 bits: k = 16; f, of thread t of warp w: columns 16 w + t / 4 and 8 further of rows 2 (t % 4) and the next, then of the rows 8 below.
#define REGISTER_PRODUCT(Storage, type, rows, sums, f0, f1, f2, f3, factor_a, added)                                                       \
    __device__ __forceinline__ void register_product(float (&c)[sums], const unsigned *f, unsigned long long a, int add, Storage) {        \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" added ", 0;\n"                                                               \
                     "wgmma.mma_async.sync.aligned.m64n" rows "k16.f32." type "." type " {" REGISTERS_##sums "}, {%" f0 ", %" f1 ", %" f2  \
                     ", %" f3 "}, %" factor_a ", add, 1, 1, 0;\n}"                                                                         \
                     : SUMS_##sums(c, 0)                                                                                                   \
                     : "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3]), "l"(a), "r"(add)                                                        \
                     : "memory");                                                                                                          \
    }
#define REGISTER_PRODUCTS(Storage, type)                                                                                                   \
    REGISTER_PRODUCT(Storage, type, "40", 20, "20", "21", "22", "23", "24", "25")                                                          \
    REGISTER_PRODUCT(Storage, type, "64", 32, "32", "33", "34", "35", "36", "37")                                                          \
    REGISTER_PRODUCT(Storage, type, "128", 64, "64", "65", "66", "67", "68", "69")                                                         \
    REGISTER_PRODUCT(Storage, type, "256", 128, "128", "129", "130", "131", "132", "133")
REGISTER_PRODUCTS(float16, "f16")
REGISTER_PRODUCTS(bfloat16, "bf16")
template <int SUMS> __device__ __forceinline__ void register_product(float (&c)[SUMS], const unsigned *f, unsigned long long a, int add, float) {
    transposed_product(c, f, a, add);
}
