// The PTX instructions that the stand-in has. rewrite.py turns `asm("fma.rn.f32 %0, %1, %2, %0;" ...)` into ptx::fma_rn_f32(c, a, b, c):
// dots become underscores, operands keep their order. An instruction that is not here reports an error when it is reached.
#pragma once
#include "half.h"
#include "tensor_core.h"

namespace cpu {

// A register of the constraint's width, from any C++ type.
template <class T> inline std::uint16_t r16(T x) { return static_cast<std::uint16_t>(x); }
template <class T> inline std::uint32_t r32(T x) {
    if constexpr (std::is_same_v<T, float>) return bits_as<std::uint32_t>(x);
    else return static_cast<std::uint32_t>(x);
}
template <class T> inline std::uint64_t r64(T x) {
    if constexpr (std::is_pointer_v<T>) return reinterpret_cast<std::uintptr_t>(x);
    else return static_cast<std::uint64_t>(x);
}

namespace ptx {

inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

// ---- arithmetic ----------------------------------------------------------------------------------------------------------------------
inline void fma_rn_f32(float &d, float a, float b, float c) { d = std::fmaf(a, b, c); }
inline void add_rn_f32(float &d, float a, float b) { d = a + b; }
inline void mul_rn_f32(float &d, float a, float b) { d = a * b; }
// Rounded to nearest, where a GPU's results are wrong by up to 2 units in the last place. Subnormals are flushed as on a GPU.
inline void ex2_approx_ftz_f32(float &d, float a) { d = flushed(static_cast<float>(std::exp2(static_cast<double>(flushed(a))))); }
inline void rcp_approx_ftz_f32(float &d, float a) { d = flushed(1.0f / flushed(a)); }
inline void max_f16x2(unsigned &d, unsigned a, unsigned b) {
    d = greater_16<float_of_half>(r16(a), r16(b)) | static_cast<unsigned>(greater_16<float_of_half>(r16(a >> 16), r16(b >> 16))) << 16;
}
inline void max_bf16x2(unsigned &d, unsigned a, unsigned b) {
    d = greater_16<float_of_bfloat>(r16(a), r16(b)) | static_cast<unsigned>(greater_16<float_of_bfloat>(r16(a >> 16), r16(b >> 16))) << 16;
}

// ---- conversions; of an x2 the second operand is the low half ----------------------------------------------------------------------
inline void cvt_f32_f16(float &d, std::uint16_t a) { d = float_of_half(a); }
inline void cvt_rn_f16_f32(unsigned short &d, float a) { d = half_of_float(a); }
inline void cvt_rn_bf16_f32(unsigned short &d, float a) { d = bfloat_of_float(a); }
inline void cvt_rn_f16x2_f32(unsigned &d, float high, float low) { d = half_of_float(low) | static_cast<unsigned>(half_of_float(high)) << 16; }
inline void cvt_rn_bf16x2_f32(unsigned &d, float high, float low) {
    d = bfloat_of_float(low) | static_cast<unsigned>(bfloat_of_float(high)) << 16;
}
inline void cvt_rna_tf32_f32(unsigned &d, float a) { d = tf32_of_float(a); }

// ---- memory --------------------------------------------------------------------------------------------------------------------------
template <class T> inline T load(std::uint64_t address, int at = 0) {
    T x;
    std::memcpy(&x, static_cast<const char *>(from_shared_address(address + at * sizeof(T), sizeof(T), false)), sizeof x);
    return x;
}
template <class T> inline void aligned(std::uint64_t address, int count) {
    if (address % (sizeof(T) * count) != 0)
        report("an access of %d bytes at byte %llu: not a multiple", static_cast<int>(sizeof(T) * count),
               static_cast<unsigned long long>(address));
}
inline void ld_global_u16(unsigned short &d, std::uint64_t address) { std::memcpy(&d, reinterpret_cast<const void *>(address), 2); }
inline void ld_global_nc_L2_128B_u32(unsigned &x, std::uint64_t from) {
    aligned<unsigned>(from, 1), std::memcpy(&x, reinterpret_cast<const void *>(from), 4);
}
inline void ld_global_nc_L1_no_allocate_L2_128B_v2_u32(unsigned &x, unsigned &y, std::uint64_t from) {
    ld_global_nc_L2_128B_u32(x, from), ld_global_nc_L2_128B_u32(y, from + 4);
    aligned<unsigned>(from, 2);
}
inline void ld_global_nc_L1_no_allocate_L2_128B_v4_u32(unsigned &x, unsigned &y, unsigned &z, unsigned &w, std::uint64_t from) {
    ld_global_nc_L1_no_allocate_L2_128B_v2_u32(x, y, from), ld_global_nc_L1_no_allocate_L2_128B_v2_u32(z, w, from + 8);
    aligned<unsigned>(from, 4);
}
inline void ld_shared_u16(unsigned short &x, std::uint32_t address) { aligned<unsigned short>(address, 1), x = load<unsigned short>(address); }
inline void ld_shared_f32(float &d, std::uint32_t address) { aligned<float>(address, 1), d = load<float>(address); }
inline void ld_shared_v2_u32(unsigned &a, unsigned &b, std::uint32_t address) {
    aligned<unsigned>(address, 2), a = load<unsigned>(address), b = load<unsigned>(address, 1);
}
inline void ld_shared_v4_u32(unsigned &a, unsigned &b, unsigned &c, unsigned &d, std::uint32_t address) {
    aligned<unsigned>(address, 4);
    a = load<unsigned>(address), b = load<unsigned>(address, 1), c = load<unsigned>(address, 2), d = load<unsigned>(address, 3);
}
inline void ld_shared_v4_f32(float &a, float &b, float &c, float &d, std::uint32_t address) {
    aligned<float>(address, 4);
    a = load<float>(address), b = load<float>(address, 1), c = load<float>(address, 2), d = load<float>(address, 3);
}
template <class T> inline void store(std::uint64_t address, T x) {
    aligned<T>(address, 1), std::memcpy(from_shared_address(address, sizeof(T), true), &x, sizeof x);
}
inline void st_shared_u16(std::uint32_t address, std::uint16_t x) { store(address, x); }
inline void st_shared_u32(std::uint32_t address, std::uint32_t x) { store(address, x); }
inline void st_shared_b32(std::uint32_t address, std::uint32_t x) { store(address, x); }
inline void st_shared_f32(std::uint32_t address, float x) { store(address, x); }

inline void st_shared_v2_b32(std::uint32_t address, std::uint32_t a, std::uint32_t b) {
    aligned<std::uint32_t>(address, 2);
    store(address, a), store(address + 4, b);
}
inline void st_shared_v4_b32(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    aligned<std::uint32_t>(address, 4);
    store(address, a), store(address + 4, b), store(address + 8, c), store(address + 12, d);
}
inline void prmt_b32(unsigned &d, unsigned a, unsigned b, unsigned picks) {
    const std::uint64_t both = static_cast<std::uint64_t>(b) << 32 | a;
    d = 0;
    for (int i = 0; i < 4; i++) d |= static_cast<unsigned>(both >> 8 * (picks >> 4 * i & 7) & 0xff) << 8 * i;
}
inline void prmt_b32(unsigned &d, float a, float b, unsigned picks) { prmt_b32(d, __float_as_uint(a), __float_as_uint(b), picks); }
inline void cp_async_cg_shared_global(std::uint32_t to, std::uint64_t from, int bytes, int given = -1) {
    copy_later(to, reinterpret_cast<const void *>(from), bytes, given < 0 ? bytes : given);
}
inline void cp_async_ca_shared_global(std::uint32_t to, std::uint64_t from, int bytes, int given = -1) {
    cp_async_cg_shared_global(to, from, bytes, given);
}
inline void cp_async_commit_group() { copies_commit(); }
inline void cp_async_wait_group(int pending) { copies_wait(pending, false); }
inline void cp_async_wait_all() { copies_wait(0, true); }

inline void atom_acq_rel_gpu_global_inc_u32(unsigned &d, std::uint64_t address, std::uint32_t last) {
    d = atomicInc(reinterpret_cast<unsigned *>(address), last);
}
// Relaxed accesses race with other blocks' accesses, so they are atomics.
inline void st_relaxed_gpu_global_u32(std::uint64_t address, std::uint32_t x) { atomicExch(reinterpret_cast<unsigned *>(address), x); }
inline void ld_relaxed_gpu_global_u32(unsigned &d, std::uint64_t address) { d = atomicOr(reinterpret_cast<unsigned *>(address), 0u); }
inline void ld_relaxed_gpu_global_v4_u32(unsigned &a, unsigned &b, unsigned &c, unsigned &d, std::uint64_t address) {
    unsigned *to[4] = {&a, &b, &c, &d};
    for (int k = 0; k < 4; k++) ld_relaxed_gpu_global_u32(*to[k], address + 4 * k);
}

// ---- special registers ---------------------------------------------------------------------------------------------------------------
template <class T> inline void mov_u32(T &d, std::uint32_t a) { d = a; }
inline std::uint32_t sreg_dynamic_smem_size() { return static_cast<std::uint32_t>(dynamic_shared_size()); }
inline std::uint32_t sreg_laneid() { return static_cast<std::uint32_t>(lane()); }

}  // namespace ptx
}  // namespace cpu
