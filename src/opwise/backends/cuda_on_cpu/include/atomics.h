// Atomics on global and shared memory. They are real atomics, because blocks run on several cores.
#pragma once

namespace cpu {
// Not instrumented as plain accesses are; checks shared memory itself.
template <class T, class F> __attribute__((noinline, no_sanitize("thread"))) T atomically(T *p, F changed) {
    using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    static_assert(sizeof(T) == sizeof(Word), "4 or 8 bytes");
    checked(p, sizeof(T), false);
    checked(p, sizeof(T), true);
    auto *word = reinterpret_cast<Word *>(p);
    Word seen = __atomic_load_n(word, __ATOMIC_SEQ_CST), wanted;
    T old;
    do {
        std::memcpy(&old, &seen, sizeof old);
        const T fresh = changed(old);
        std::memcpy(&wanted, &fresh, sizeof wanted);
    } while (!__atomic_compare_exchange_n(word, &seen, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}
template <class T> using Same = std::common_type_t<T>;  // no template argument deduction from the value
}  // namespace cpu

#define OPWISE_ATOMIC(name, ...)                                                                                                           \
    template <class T> inline T name(T *p, cpu::Same<T> x) {                                                                              \
        return cpu::atomically(p, [x](T old) -> T { return __VA_ARGS__; });                                                                \
    }
OPWISE_ATOMIC(atomicAdd, old + x)
OPWISE_ATOMIC(atomicSub, old - x)
OPWISE_ATOMIC(atomicExch, ((void)old, x))
OPWISE_ATOMIC(atomicMin, old < x ? old : x)
OPWISE_ATOMIC(atomicMax, old < x ? x : old)
OPWISE_ATOMIC(atomicAnd, old & x)
OPWISE_ATOMIC(atomicOr, old | x)
OPWISE_ATOMIC(atomicXor, old ^ x)
OPWISE_ATOMIC(atomicInc, old >= x ? 0 : old + 1)
OPWISE_ATOMIC(atomicDec, old == 0 || old > x ? x : old - 1)
#undef OPWISE_ATOMIC
template <class T> inline T atomicCAS(T *p, cpu::Same<T> compare, cpu::Same<T> x) {
    return cpu::atomically(p, [compare, x](T old) -> T { return old == compare ? x : old; });
}
