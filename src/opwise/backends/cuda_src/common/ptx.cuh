// PTX instructions and launch geometry for the matmul kernels.
//
// float32 additions and fused multiply-adds are PTX without .ftz, so that no compiler flag makes them flush subnormal sums to zero.
// Memory instructions are volatile and clobber memory, so that none crosses a barrier.
#pragma once
#include "common/one_kernel.cuh"
#include "common/storage.cuh"

struct alignas(16) Words4 {
    unsigned x, y, z, w;
};

// A byte address in the block's shared memory: 32 bits, where a generic pointer takes two registers and 64-bit arithmetic.
using SharedAddress = unsigned;

extern __shared__ Words4 dynamic_shared_memory[];
__device__ __forceinline__ SharedAddress shared_base() { return static_cast<unsigned>(__cvta_generic_to_shared(dynamic_shared_memory)); }
__device__ __forceinline__ int thread_index() { return threadIdx.x; }
__device__ __forceinline__ unsigned block_index() { return blockIdx.x; }
__device__ __forceinline__ void block_barrier() { __syncthreads(); }
__device__ __forceinline__ void warp_barrier() { __syncwarp(); }

// ---- conversions -------------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ float as_float(unsigned bits) { return __uint_as_float(bits); }
__device__ __forceinline__ unsigned bits_of(float x) { return __float_as_uint(x); }
template <class Storage> __device__ __forceinline__ unsigned bits_of(const Storage &x) { return x.bits; }

template <class Storage> __device__ __forceinline__ unsigned pack(float low, float high) {
    Storage x, y;
    from_float(low, x);
    from_float(high, y);
    return x.bits | static_cast<unsigned>(y.bits) << 16;
}

// To nearest, ties away from zero: the only rounding to TF32 that PTX has on all targets. Without it a tensor core drops the low 13 bits,
// which doubles the maximum error and biases every product towards zero.
__device__ __forceinline__ unsigned round_to_tf32(unsigned bits) {
    unsigned y = bits;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(__uint_as_float(bits)));
#endif
    return y;
}

// The low 4 of 8 bytes, shifted right by `bits`, at most 31.
__device__ __forceinline__ unsigned down_by(unsigned low, unsigned high, unsigned bits) { return __funnelshift_r(low, high, bits); }

// 4 bytes of a matrix as a tensor core's operand: float32 is rounded to TF32.
template <class Storage> __device__ __forceinline__ unsigned as_factor(unsigned bits) { return bits; }
template <> __device__ __forceinline__ unsigned as_factor<float>(unsigned bits) { return round_to_tf32(bits); }

__device__ __forceinline__ float fused(float a, float b, float c) {
    asm("fma.rn.f32 %0, %1, %2, %0;" : "+f"(c) : "f"(a), "f"(b));
    return c;
}
__device__ __forceinline__ float sum(float a, float b) {
    float c;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
// A copy of x in another register. as_it_is is 0x3210, but unknown to the compiler. x is a float operand: if it is passed as bits, ptxas
// assigns the sums other registers and moves them, which takes 4 % of the time of products of 1024 to 8192 cubed.
__device__ __forceinline__ unsigned apart(float x, unsigned as_it_is) {
    unsigned bits;
    asm volatile("prmt.b32 %0, %1, %1, %2;" : "=r"(bits) : "f"(x), "r"(as_it_is));
    return bits;
}
__device__ __forceinline__ Words4 apart(const float *x, unsigned as_it_is) {
    return {apart(x[0], as_it_is), apart(x[1], as_it_is), apart(x[2], as_it_is), apart(x[3], as_it_is)};
}

// The low (which = 0x5410) or high (0x7632) halves of x and y, x's in the low half.
__device__ __forceinline__ unsigned pick_halves(unsigned x, unsigned y, unsigned which) {
    unsigned halves;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(halves) : "r"(x), "r"(y), "r"(which));
    return halves;
}

// ---- global memory to shared memory ------------------------------------------------------------------------------------------------

// Copies BYTES (16, 8 or 4) asynchronously, or writes as many zeros if `valid` is false, without reading `source`. Complete for this thread
// after copies_wait, for the block after a later barrier. Before sm_80 the copy is synchronous.
template <int BYTES> __device__ __forceinline__ void copy_async(SharedAddress destination, const void *source, bool valid) {
#if __CUDA_ARCH__ >= 800
    const unsigned size = valid ? BYTES : 0;
    const unsigned long long from = __cvta_generic_to_global(source);
    if constexpr (BYTES == 16)  // .cg bypasses L1: the block reads these bytes once
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(from), "r"(size) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(destination), "l"(from), "n"(BYTES), "r"(size) : "memory");
#else
    static_assert(BYTES % 4 == 0, "whole words");
    for (int i = 0; i < BYTES / 4; i++) {
        const unsigned word = valid ? static_cast<const unsigned *>(source)[i] : 0u;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(destination + 4 * i), "r"(word) : "memory");
    }
#endif
}
__device__ __forceinline__ void copies_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most PENDING of this thread's latest groups are unfinished.
template <int PENDING> __device__ __forceinline__ void copies_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// Two bytes, or zero without a load.
__device__ __forceinline__ unsigned short load_global_2(const void *source, bool valid) {
    unsigned short x = 0;
    if (valid) asm volatile("ld.global.u16 %0, [%1];" : "=h"(x) : "l"(__cvta_generic_to_global(source)) : "memory");
    return x;
}
// BYTES (16, 8 or 4) that are read once, or zeros without a load. L2::128B prefetches the whole 128-byte line into L2, since neighbouring
// blocks read other parts of it. 4-byte loads allocate in L1, since the warp's next loads are from the same line.
template <int BYTES> __device__ __forceinline__ void load_global_words(unsigned *to, const void *source, bool valid) {
    const unsigned long long from = __cvta_generic_to_global(source);
#pragma unroll
    for (int i = 0; i < BYTES / 4; i++) to[i] = 0;
    if (!valid) return;
    if constexpr (BYTES == 16)
        asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "l"(from));
    else if constexpr (BYTES == 8)
        asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
    else
        asm volatile("ld.global.nc.L2::128B.u32 %0, [%1];" : "=r"(to[0]) : "l"(from));
}
// The same pointer, opaque to the compiler, which would otherwise keep each row's offset in a register.
template <class T> __device__ __forceinline__ T *opaque(T *pointer) {
    asm("" : "+l"(pointer));
    return pointer;
}

// ---- shared memory -----------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void store_shared(SharedAddress address, unsigned short x) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(x) : "memory");
}
__device__ __forceinline__ void store_shared(SharedAddress address, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}
__device__ __forceinline__ float load_shared_float(SharedAddress address) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
    return x;
}
__device__ __forceinline__ Words4 load_shared_16(SharedAddress address) {
    Words4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
    return v;
}
__device__ __forceinline__ void store_shared_16(SharedAddress to, const Words4 &v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
// BYTES: 16, 8 or 4.
template <int BYTES> __device__ __forceinline__ void store_shared_words(SharedAddress to, const unsigned *words) {
    if constexpr (BYTES == 16)
        store_shared_16(to, Words4{words[0], words[1], words[2], words[3]});
    else if constexpr (BYTES == 8)
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(words[0]), "r"(words[1]) : "memory");
    else
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(words[0]) : "memory");
}
__device__ __forceinline__ void load_shared_16(float *to, SharedAddress from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void load_shared_8(SharedAddress address, unsigned &x, unsigned &y) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "r"(address) : "memory");
}

// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8 (16 bytes, aligned). Lane l receives of
// matrix i, in f[i], elements 2 (l % 4) and the next of row l / 4; transposed: of column l / 4.
__device__ __forceinline__ void load_matrices(unsigned (&f)[4], SharedAddress row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                 : "r"(row)
                 : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(unsigned (&f)[4], SharedAddress row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                 : "r"(row)
                 : "memory");
}

__device__ __forceinline__ unsigned load_word(SharedAddress from) {
    unsigned x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
    return x;
}
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

// ---- the warp ----------------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ unsigned exchange(unsigned x, int lane_mask) { return __shfl_xor_sync(0xffffffffu, x, lane_mask); }

// mma.sync: c += a b, one 16x8 tile per warp, k = 16 (16-bit) or 8 (TF32). Lane l holds rows l / 4 and l / 4 + 8 of a and c, column l / 4
// of b and columns 2 (l % 4), 2 (l % 4) + 1 of c. The plans use it from sm_80 on.
__device__ __forceinline__ void tensor_product(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], float16) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    __trap();
#endif
}
__device__ __forceinline__ void tensor_product(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], bfloat16) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    __trap();
#endif
}
__device__ __forceinline__ void tensor_product(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], float) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    __trap();
#endif
}
