// Hopper's own instructions (sm_90a): TMA copies of tiles, mbarriers, products of a whole warpgroup (wgmma).
//
// Nothing here is known to the compiler as a memory access, so everything is volatile and clobbers memory. A tile in shared memory is a
// stack of rows of 128 bytes; TMA permutes the 16-byte chunks of a row by an XOR with the row's number modulo 8 (its 128-byte swizzle,
// which is by address: tiles start on 1024 bytes), and wgmma undoes it.
#pragma once
#include "common/cluster.cuh"
#include "common/ptx.cuh"

// The driver's CUtensorMap: address, shape, box and swizzle of a matrix in global memory, encoded on the host. cuda.h is not included.
struct alignas(64) TensorMap {
    char opaque[128];
};

// ---- mbarriers: `phase` is the parity of the phase waited for; a wait for the phase before the first returns at once ---------------

__device__ __forceinline__ void barrier_init(SharedAddress barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialized barriers visible to the copy engine; to other threads a barrier does.
__device__ __forceinline__ void barriers_publish() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_wait(SharedAddress barrier, unsigned phase) {
    unsigned done = 0;
    while (!done) {
        asm volatile("{\n"
                     ".reg .pred passed;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 passed, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, passed;\n"
                     "}"
                     : "=r"(done)
                     : "r"(barrier), "r"(phase)
                     : "memory");
    }
}
// One arrival, and `bytes` of copies that the phase waits for as well.
__device__ __forceinline__ void barrier_expect(SharedAddress barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(SharedAddress barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// At a barrier of the cluster, by its address there. No order beyond the block's is asked for: that would be a fence of the whole GPU.
__device__ __forceinline__ void barrier_arrive_there(SharedAddress there) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
}
// This thread arrives once all of its cp.async have landed; the barrier's count has it in.
__device__ __forceinline__ void barrier_arrive_copied(SharedAddress barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// ---- TMA: a box of a matrix, its first element at (row, column); outside the matrix zeros are read and nothing is written --------------

__device__ __forceinline__ void box_load(SharedAddress to, const TensorMap &map, int row, int column, SharedAddress barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}
// Bytes that follow one another, a multiple of 16, as they lie.
__device__ __forceinline__ void stretch_load(SharedAddress to, const void *from, unsigned bytes, SharedAddress barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
                 : "memory");
}
// A box to both blocks of a cluster of two, at the same place in each, whose own barriers count the bytes.
__device__ __forceinline__ void box_load_both(SharedAddress to, const TensorMap &map, int row, int column, SharedAddress barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], "
                 "[%4], %5;" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(static_cast<unsigned short>(3))
                 : "memory");
}
// Stores up to a `boxes_commit` are a group. `boxes_wait` waits until all but PENDING of this thread's latest have read their shared memory.
__device__ __forceinline__ void box_store_begin(const TensorMap &map, int row, int column, SharedAddress from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(column), "r"(row), "r"(from)
                 : "memory");
}
__device__ __forceinline__ void boxes_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// A group of one store.
__device__ __forceinline__ void box_store(const TensorMap &map, int row, int column, SharedAddress from) {
    box_store_begin(map, row, column, from), boxes_commit();
}
template <int PENDING> __device__ __forceinline__ void boxes_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
// What this thread wrote to shared memory may now be read by the copy engine; others need a barrier behind it.
__device__ __forceinline__ void publish_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- clusters, beyond cluster.cuh ------------------------------------------------------------------------------------------------

// 16 bytes to another block's shared memory, whose barrier counts them in: nobody waits here.
__device__ __forceinline__ void push_16(SharedAddress there, const float *from, SharedAddress barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there), "f"(from[0]),
                 "f"(from[1]), "f"(from[2]), "f"(from[3]), "r"(barrier)
                 : "memory");
}
// As barrier_wait; what other blocks pushed is seen behind it.
__device__ __forceinline__ void barrier_wait_cluster(SharedAddress barrier, unsigned phase) {
    unsigned done = 0;
    while (!done) {
        asm volatile("{\n"
                     ".reg .pred passed;\n"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 passed, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, passed;\n"
                     "}"
                     : "=r"(done)
                     : "r"(barrier), "r"(phase)
                     : "memory");
    }
}

// ---- warpgroups ------------------------------------------------------------------------------------------------------------------

// This thread's warpgroup, as a number that the compiler knows to be the same in all lanes of a warp: addresses made of it stay in uniform
// registers, where wgmma and TMA want them.
__device__ __forceinline__ int warpgroup_index() { return __shfl_sync(0xffffffffu, thread_index() / 128, 0); }
__device__ __forceinline__ int warp_index() { return __shfl_sync(0xffffffffu, thread_index() / 32, 0); }
// True in one lane of the warp, all of whose lanes must ask. Unlike `lane == 0` the compiler knows that it is one lane, and issues TMA
// copies without a loop over lanes.
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
// Among the THREADS threads of a warpgroup, or several; `id` 0 is __syncthreads's.
template <int THREADS = 128> __device__ __forceinline__ void warpgroup_barrier(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}
// Arrives at a warpgroup_barrier of as many threads, and goes on.
template <int THREADS> __device__ __forceinline__ void warpgroup_let(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

// Among so many threads of the block, whole warps.
__device__ __forceinline__ void threads_barrier(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// Registers move from the warpgroup that only issues copies to those that hold the sums. Obeyed only under __launch_bounds__(threads, 1).
template <int COUNT> __device__ __forceinline__ void registers_release() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void registers_claim() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }

// Four 8x8 matrices of 16-bit elements to shared memory: the inverse of load_matrices.
__device__ __forceinline__ void store_matrices(SharedAddress row, const unsigned (&f)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3])
                 : "memory");
}

// Each transposed on its way: a lane gives the address of a column of its matrix.
__device__ __forceinline__ void store_matrices_transposed(SharedAddress column, const unsigned (&f)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(column), "r"(f[0]), "r"(f[1]), "r"(f[2]),
                 "r"(f[3])
                 : "memory");
}

// ---- wgmma: c += a b for 64 rows, N columns and k = 16, by the 128 threads of a warpgroup, both factors in shared memory ----------------

// Where a factor lies, swizzled: `apart` and `columns_apart` are bytes from one group of 8 rows to the next and, for b, from one
// 64-column tile to the next; ROW_BYTES are those of a row: 128 or, of a b of 32 columns, 64. Only addresses below 256 KB fit, and 16 bytes
// are the unit.
template <int ROW_BYTES = 128>
__device__ __forceinline__ unsigned long long factor(SharedAddress tile, unsigned apart, unsigned columns_apart) {
    static_assert(ROW_BYTES == 128 || ROW_BYTES == 64);
    constexpr unsigned long long SWIZZLED = (ROW_BYTES == 128 ? 1ull : 2ull) << 62;
    return SWIZZLED | static_cast<unsigned long long>(apart / 16) << 32 | static_cast<unsigned long long>(columns_apart / 16) << 16 |
           (tile & 0x3ffff) / 16;
}
// The same, `bytes` further on: one addition to its low word, out of which nothing is carried.
__device__ __forceinline__ unsigned long long further(unsigned long long factor, unsigned bytes) {
    return factor >> 32 << 32 | (static_cast<unsigned>(factor) + bytes / 16);
}
// Registers and shared memory written before may be used by the products that follow.
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// warpgroup_product: a is row-major along k, b along its columns; swapped_product: the other way round, for c' = b' a'. Thread t of warp w
// holds of c, for j in 0 .. N / 8, in c[4j], c[4j + 1] row 16w + t / 4, columns 8j + 2 (t % 4) and the next, and in c[4j + 2], c[4j + 3] the
// same 8 rows below. add = 0: c = a b.
#define SUMS_4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define SUMS_16(c, i) SUMS_4(c, i), SUMS_4(c, i + 4), SUMS_4(c, i + 8), SUMS_4(c, i + 12)
#define SUMS_32(c, i) SUMS_16(c, i), SUMS_16(c, i + 16)
#define SUMS_48(c, i) SUMS_32(c, i), SUMS_16(c, i + 32)
#define SUMS_64(c, i) SUMS_32(c, i), SUMS_32(c, i + 32)
#define SUMS_72(c, i) SUMS_64(c, i), SUMS_4(c, i + 64), SUMS_4(c, i + 68)
#define SUMS_8(c, i) SUMS_4(c, i), SUMS_4(c, i + 4)
#define SUMS_80(c, i) SUMS_64(c, i), SUMS_16(c, i + 64)
#define SUMS_88(c, i) SUMS_72(c, i), SUMS_16(c, i + 72)
#define SUMS_96(c, i) SUMS_64(c, i), SUMS_32(c, i + 64)
#define SUMS_104(c, i) SUMS_96(c, i), SUMS_8(c, i + 96)
#define SUMS_128(c, i) SUMS_64(c, i), SUMS_64(c, i + 64)
#define REGISTERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_32 REGISTERS_16 ", "                                                                                                     \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_48 REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_64 REGISTERS_32 ", "                                                                                                     \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                                                     \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_72 REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define REGISTERS_80 REGISTERS_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define REGISTERS_88 REGISTERS_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define REGISTERS_96 REGISTERS_64 ", "                                                                                                     \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                                                     \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define REGISTERS_104 REGISTERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define REGISTERS_128 REGISTERS_96 ", "                                                                                                    \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "                                         \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define PRODUCT(name, along_columns, Storage, type, columns, sums, factor_a, factor_b, added)                                               \
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
    PRODUCT(warpgroup_product, "0, 1", Storage, type, "160", 80, "80", "81", "82")                                                         \
    PRODUCT(swapped_product, "1, 0", Storage, type, "16", 8, "8", "9", "10")                                                                \
    PRODUCT(swapped_product, "1, 0", Storage, type, "96", 48, "48", "49", "50")                                                             \
    PRODUCT(swapped_product, "1, 0", Storage, type, "144", 72, "72", "73", "74")                                                            \
    PRODUCT(swapped_product, "1, 0", Storage, type, "160", 80, "80", "81", "82")                                                            \
    PRODUCT(swapped_product, "1, 0", Storage, type, "176", 88, "88", "89", "90")                                                            \
    PRODUCT(swapped_product, "1, 0", Storage, type, "208", 104, "104", "105", "106")                                                         \
    PRODUCT(warpgroup_product, "0, 1", Storage, type, "192", 96, "96", "97", "98")                                                         \
    PRODUCT(warpgroup_product, "0, 1", Storage, type, "256", 128, "128", "129", "130")
PRODUCTS(float16, "f16")
PRODUCTS(bfloat16, "bf16")
