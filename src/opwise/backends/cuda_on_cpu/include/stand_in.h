// CUDA C++'s extensions, for a CPU: the host's compiler compiles a kernel's text, rewritten by rewrite.py, with this header before it.
// runtime.cpp runs it, one fibre per CUDA thread. An unsupported construct reports an error when it is reached.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "vectors.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)

namespace cpu {

// ---- what the runtime offers ---------------------------------------------------------------------------------------------------------

// Constant for a thread, so the compiler may call them once.
[[gnu::const]] uint3 thread_index();
[[gnu::const]] uint3 block_index();
[[gnu::const]] uint3 block_size();
[[gnu::const]] uint3 grid_size();
[[gnu::const]] int lane();

// The address of a __shared__ variable, the same for all threads of a block, with redzones around it. `key` identifies the variable.
void *shared_place(const void *key, const char *name, std::size_t bytes, std::size_t alignment);
void *dynamic_shared_place();
std::size_t dynamic_shared_size();
template <class T> T &shared(const void *key, const char *name) { return *static_cast<T *>(shared_place(key, name, sizeof(T), alignof(T))); }
template <class T, std::size_t... N> struct ArrayOf { using Type = T; };
template <class T, std::size_t N, std::size_t... M> struct ArrayOf<T, N, M...> { using Type = typename ArrayOf<T, M...>::Type[N]; };
template <class T, std::size_t... N> using Array = typename ArrayOf<T, N...>::Type;
// `extern __shared__ T name[]` at namespace scope.
template <class T> struct DynamicShared {
    operator T *() const { return static_cast<T *>(dynamic_shared_place()); }
};

[[noreturn]] void report(const char *format, ...);
[[noreturn]] void unsupported(const char *what);
std::uint64_t to_shared_address(const void *p);                              // bytes within the block's shared memory
void *from_shared_address(std::uint64_t address, std::size_t bytes, bool writes);  // checked
void checked(const void *p, std::size_t bytes, bool writes);

// cp.async: the copy is made at the wait. Until then its destination is marked unwritten.
void copy_later(std::uint64_t to, const void *from, std::size_t bytes, std::size_t given);
void copies_commit();
void copies_wait(std::size_t pending, bool uncommitted_too);

void block_barrier(const char *file, int line);
int block_vote(int predicate, const char *file, int line);  // the sum of all threads' predicates
void fence();

// A warp operation: waits for all lanes of `mask`; the last one calls act(all). all[lane] is that lane's `mine`, null outside the mask.
using Act = void (*)(void **all);
void meet(unsigned mask, Act act, void *mine, const char *what);

// A kernel. A launch checks of each argument only whether it is an address if it must be, and not an address otherwise.
struct Registered {
    const char *name;
    const void *address;
    void (*run)(const void *, void **);
    const bool *pointers;
    int parameters, most_threads;
    bool cluster;
    const Registered *next;

    template <class... P>
    Registered(const char *name, void (*kernel)(P...), int most_threads, bool cluster)
        : name(name), address(reinterpret_cast<const void *>(kernel)), run(&call<P...>), pointers(kinds<P...>), parameters(sizeof...(P)),
          most_threads(most_threads), cluster(cluster) {
        static_assert(((sizeof(P) <= 8) && ...), "a parameter is 8 bytes wide at most");
        enlist();
    }

  private:
    template <class... P> static constexpr bool kinds[sizeof...(P) + 1] = {std::is_pointer_v<P>..., false};
    template <class... P, std::size_t... I> static void spread(void (*f)(P...), void **given, std::index_sequence<I...>) {
        f(*static_cast<std::remove_cv_t<P> *>(given[I])...);
    }
    template <class... P> static void call(const void *f, void **given) {
        spread(reinterpret_cast<void (*)(P...)>(const_cast<void *>(f)), given, std::index_sequence_for<P...>{});
    }
    void enlist();
};

template <class To, class From> inline To bits_as(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To y;
    std::memcpy(&y, &x, sizeof y);
    return y;
}

}  // namespace cpu

#define threadIdx (::cpu::thread_index())
#define blockIdx (::cpu::block_index())
#define blockDim (::cpu::block_size())
#define gridDim (::cpu::grid_size())
constexpr int warpSize = 32;

#include "atomics.h"
#include "intrinsics.h"
#include "ptx.h"
#include "warp.h"
