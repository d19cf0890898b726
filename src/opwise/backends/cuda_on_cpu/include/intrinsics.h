// CUDA's functions that C++ lacks or names differently.
#pragma once

template <class A, class B> inline std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return std::fmin(T(a), T(b));
    else return T(a) < T(b) ? T(a) : T(b);
}
template <class A, class B> inline std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return std::fmax(T(a), T(b));
    else return T(a) < T(b) ? T(b) : T(a);
}

inline float __int_as_float(int x) { return cpu::bits_as<float>(x); }
inline int __float_as_int(float x) { return cpu::bits_as<int>(x); }
inline float __uint_as_float(unsigned x) { return cpu::bits_as<float>(x); }
inline unsigned __float_as_uint(float x) { return cpu::bits_as<unsigned>(x); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (bits & 31));
}
inline double __longlong_as_double(long long x) { return cpu::bits_as<double>(x); }
inline long long __double_as_longlong(double x) { return cpu::bits_as<long long>(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1u) << (31 - i);
    return y;
}

// The fast functions are computed exactly: a GPU's larger errors do not show here.
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

inline unsigned long long __cvta_generic_to_shared(const void *p) { return cpu::to_shared_address(p); }
inline unsigned long long __cvta_generic_to_global(const void *p) { return reinterpret_cast<std::uintptr_t>(p); }
template <class T> inline T __ldg(const T *p) { return *p; }
template <class T> inline T __ldcs(const T *p) { return *p; }
template <class T> inline T __ldcg(const T *p) { return *p; }
template <class T> inline void __stcs(T *p, T x) { *p = x; }
template <class T> inline void __stcg(T *p, T x) { *p = x; }
inline void __trap() { cpu::report("__trap() was reached"); }

inline void __threadfence() { cpu::fence(); }
inline void __threadfence_block() { cpu::fence(); }
inline void __syncthreads(const char *file = __builtin_FILE(), int line = __builtin_LINE()) { cpu::block_barrier(file, line); }
inline int __syncthreads_count(int yes, const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    return cpu::block_vote(yes != 0, file, line);
}
inline int __syncthreads_or(int yes, const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    return cpu::block_vote(yes != 0, file, line) > 0;
}
inline int __syncthreads_and(int yes, const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    return cpu::block_vote(yes == 0, file, line) == 0;
}
