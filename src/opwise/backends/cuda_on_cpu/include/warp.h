// Shuffles, votes and reductions of a warp. All lanes of the mask must take part.
#pragma once

namespace cpu {

struct Shuffle {
    std::uint64_t given, got;
    int source;  // the lane to read
};
inline void shuffle_all(void **all) {
    for (int i = 0; i < 32; i++) {
        if (all[i] == nullptr) continue;
        auto *mine = static_cast<Shuffle *>(all[i]);
        const auto *theirs = static_cast<const Shuffle *>(all[mine->source]);
        if (theirs == nullptr) report("a shuffle reads lane %d from lane %d, and lane %d is not in the mask", mine->source, i, mine->source);
        mine->got = theirs->given;
    }
}
template <class T> inline T shuffle(unsigned mask, T x, int source) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>, "a shuffle moves 8 bytes at most");
    Shuffle mine{0, 0, source};
    std::memcpy(&mine.given, &x, sizeof x);
    meet(mask, &shuffle_all, &mine, "a shuffle");
    std::memcpy(&x, &mine.got, sizeof x);
    return x;
}

struct Ballot {
    bool yes;
    unsigned all;
};
inline void ballot_all(void **all) {
    unsigned votes = 0;
    for (int i = 0; i < 32; i++) {
        if (all[i] != nullptr && static_cast<Ballot *>(all[i])->yes) votes |= 1u << i;
    }
    for (int i = 0; i < 32; i++) {
        if (all[i] != nullptr) static_cast<Ballot *>(all[i])->all = votes;
    }
}

template <class T, class Op> void reduce_all(void **all) {
    T total{};
    bool first = true;
    for (int i = 0; i < 32; i++) {
        if (all[i] == nullptr) continue;
        const T x = *static_cast<T *>(all[i]);
        total = first ? x : Op{}(total, x);
        first = false;
    }
    for (int i = 0; i < 32; i++) {
        if (all[i] != nullptr) *static_cast<T *>(all[i]) = total;
    }
}
inline void nothing(void **) {}

}  // namespace cpu

template <class T> inline T __shfl_sync(unsigned mask, T x, int source, int width = 32) {
    const int lane = cpu::lane();
    return cpu::shuffle(mask, x, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T x, int flip, int width = 32) {
    const int lane = cpu::lane(), source = lane ^ flip;
    return cpu::shuffle(mask, x, source / width > lane / width ? lane : source);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T x, unsigned delta, int width = 32) {
    const int lane = cpu::lane(), source = lane + static_cast<int>(delta);
    return cpu::shuffle(mask, x, source / width == lane / width ? source : lane);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T x, unsigned delta, int width = 32) {
    const int lane = cpu::lane(), within = lane % width;
    return cpu::shuffle(mask, x, within >= static_cast<int>(delta) ? lane - static_cast<int>(delta) : lane);
}

inline unsigned __ballot_sync(unsigned mask, int yes) {
    cpu::Ballot mine{yes != 0, 0};
    cpu::meet(mask, &cpu::ballot_all, &mine, "a ballot");
    return mine.all;
}
inline int __any_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) != 0; }
inline int __all_sync(unsigned mask, int yes) { return __ballot_sync(mask, !yes) == 0; }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
    char mine = 0;
    cpu::meet(mask, &cpu::nothing, &mine, "__syncwarp");
}

#define OPWISE_REDUCE(name, T, ...)                                                                                                        \
    namespace cpu {                                                                                                                        \
    struct Op_##name##T {                                                                                                                  \
        T operator()(T a, T b) const { return __VA_ARGS__; }                                                                               \
    };                                                                                                                                     \
    }                                                                                                                                      \
    inline T name(unsigned mask, T x) {                                                                                                    \
        cpu::meet(mask, &cpu::reduce_all<T, cpu::Op_##name##T>, &x, #name);                                                                \
        return x;                                                                                                                          \
    }
OPWISE_REDUCE(__reduce_add_sync, int, a + b)
OPWISE_REDUCE(__reduce_add_sync, unsigned, a + b)
OPWISE_REDUCE(__reduce_min_sync, int, a < b ? a : b)
OPWISE_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
OPWISE_REDUCE(__reduce_max_sync, int, a < b ? b : a)
OPWISE_REDUCE(__reduce_max_sync, unsigned, a < b ? b : a)
OPWISE_REDUCE(__reduce_and_sync, unsigned, a & b)
OPWISE_REDUCE(__reduce_or_sync, unsigned, a | b)
OPWISE_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef OPWISE_REDUCE
