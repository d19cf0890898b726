// Shared memory: the addresses of a block's variables, the checks of accesses, and cp.async.
#include "machine.h"

#include <algorithm>
#include <cstring>

namespace cpu {
namespace {

// The name of byte `at` of shared memory in messages.
std::string place(std::size_t at) {
    const SharedMemory &shared = machine->shared;
    const Variable *v = shared.near(at);
    if (v == nullptr) return "shared memory of a block that has none";
    const std::string size = std::string(v->name) + " (" + std::to_string(v->bytes) + " bytes)";
    if (at < v->begin) return std::to_string(v->begin - at) + " bytes before " + size;
    if (at >= v->begin + v->bytes) return std::to_string(at - v->begin - v->bytes) + " bytes past the end of " + size;
    return "byte " + std::to_string(at - v->begin) + " of " + size;
}

[[gnu::cold]] void report_access(std::size_t at, std::size_t bytes, bool writes) {
    const std::uint8_t *states = machine->shared.states;
    std::size_t bad = at;
    const auto wrong = [&](std::size_t i) { return i >= ARENA || states[i] == OUTSIDE || (!writes && states[i] != WRITTEN); };
    while (bad < at + bytes && !wrong(bad)) bad++;
    if (bad >= ARENA || states[bad] == OUTSIDE)
        report("%s %zu bytes of shared memory out of bounds, %s", writes ? "writes" : "reads", bytes, place(bad).c_str());
    report("reads %zu bytes of shared memory that nothing has written, %s", bytes, place(bad).c_str());
}

// Checks a kernel's access. The instrumentation calls it for every plain access.
UNCHECKED inline void look(const void *p, std::size_t bytes, bool writes) {
    Machine *m = machine;
    if (m == nullptr) return;
    const std::size_t at = static_cast<std::size_t>(static_cast<const char *>(p) - m->shared.bytes);
    if (at >= ARENA) return;
    std::uint8_t *states = m->shared.states + at;
    bool right = at + bytes <= ARENA;
    for (std::size_t i = 0; right && i < bytes; i++) right = writes ? states[i] != OUTSIDE : states[i] == WRITTEN;
    if (!right) report_access(at, bytes, writes);
    if (writes) {
        for (std::size_t i = 0; i < bytes; i++) states[i] = WRITTEN;
    }
}

}  // namespace

void *shared_place(const void *key, const char *name, std::size_t bytes, std::size_t alignment) {
    SharedMemory &shared = machine->shared;
    for (int i = 0; i < shared.count; i++) {
        if (shared.variables[i].key == key) return shared.bytes + shared.variables[i].begin;
    }
    shared.of_statics += bytes;
    if (shared.of_statics > MOST_STATIC || shared.count == MOST_VARIABLES)
        report("%zu bytes of static shared memory with %s, %zu are there", shared.of_statics, name, MOST_STATIC);
    return shared.bytes + shared.add(key, name, bytes, std::max<std::size_t>(alignment, 16)).begin;
}
void *dynamic_shared_place() { return machine->shared.bytes + FIRST; }
std::size_t dynamic_shared_size() { return machine->grid->shared_bytes; }

std::uint64_t to_shared_address(const void *p) {
    const auto at = static_cast<std::size_t>(static_cast<const char *>(p) - machine->shared.bytes);
    if (at > ARENA) report("__cvta_generic_to_shared of an address that is not in shared memory");
    return at;
}
void *from_shared_address(std::uint64_t address, std::size_t bytes, bool writes) {
    if (address >= ARENA) report_access(address, bytes, writes);
    void *p = machine->shared.bytes + address;
    look(p, bytes, writes);
    return p;
}
void checked(const void *p, std::size_t bytes, bool writes) { look(p, bytes, writes); }

void copy_later(std::uint64_t to, const void *from, std::size_t bytes, std::size_t given) {
    if (to % bytes != 0 || (given > 0 && reinterpret_cast<std::uintptr_t>(from) % bytes != 0))
        report("cp.async of %zu bytes to byte %llu from %p: not multiples", bytes, static_cast<unsigned long long>(to), from);
    from_shared_address(to, bytes, true);
    std::memset(machine->shared.states + to, UNWRITTEN, bytes);
    machine->now->copies.push_back({to, from, bytes, given, machine->now->groups});
}
void copies_commit() { machine->now->groups++; }
void copies_wait(std::size_t pending, bool uncommitted_too) {
    Thread &t = *machine->now;
    const int landed = uncommitted_too ? t.groups + 1 : t.groups - static_cast<int>(pending);  // groups before this one
    std::size_t kept = 0;
    for (const Copy &c : t.copies) {
        if (c.group >= landed) {
            t.copies[kept++] = c;
            continue;
        }
        char *to = machine->shared.bytes + c.to;
        std::memcpy(to, c.from, c.given);
        std::memset(to + c.given, 0, c.bytes - c.given);
        std::memset(machine->shared.states + c.to, WRITTEN, c.bytes);
    }
    t.copies.resize(kept);
}

}  // namespace cpu

// ---- the functions that -fsanitize=thread calls; its runtime is not linked -----------------------------------------------------------

#define HOOK extern "C" __attribute__((visibility("hidden"))) UNCHECKED
#define ACCESS(n)                                                                                                                          \
    HOOK void __tsan_read##n(void *p) { cpu::look(p, n, false); }                                                                          \
    HOOK void __tsan_write##n(void *p) { cpu::look(p, n, true); }                                                                          \
    HOOK void __tsan_unaligned_read##n(void *p) { cpu::look(p, n, false); }                                                                \
    HOOK void __tsan_unaligned_write##n(void *p) { cpu::look(p, n, true); }                                                                \
    HOOK void __tsan_volatile_read##n(void *p) { cpu::look(p, n, false); }                                                                 \
    HOOK void __tsan_volatile_write##n(void *p) { cpu::look(p, n, true); }                                                                 \
    HOOK void __tsan_read_write##n(void *p) { cpu::look(p, n, false), cpu::look(p, n, true); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
HOOK void __tsan_read_range(void *p, std::size_t bytes) { cpu::look(p, bytes, false); }
HOOK void __tsan_write_range(void *p, std::size_t bytes) { cpu::look(p, bytes, true); }
HOOK void __tsan_init() {}
HOOK void __tsan_func_entry(void *) {}
HOOK void __tsan_func_exit(void *) {}
HOOK void __tsan_vptr_update(void **, void *) {}
HOOK void __tsan_vptr_read(void **) {}
HOOK void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
HOOK void *__tsan_memcpy(void *to, const void *from, std::size_t n) {
    cpu::look(from, n, false), cpu::look(to, n, true);
    return std::memcpy(to, from, n);
}
HOOK void *__tsan_memset(void *to, int x, std::size_t n) {
    cpu::look(to, n, true);
    return std::memset(to, x, n);
}
#define ATOMIC(bits)                                                                                                                       \
    HOOK std::uint##bits##_t __tsan_atomic##bits##_load(const volatile std::uint##bits##_t *p, int) { return __atomic_load_n(p, 5); }      \
    HOOK void __tsan_atomic##bits##_store(volatile std::uint##bits##_t *p, std::uint##bits##_t x, int) { __atomic_store_n(p, x, 5); }      \
    HOOK std::uint##bits##_t __tsan_atomic##bits##_exchange(volatile std::uint##bits##_t *p, std::uint##bits##_t x, int) {                 \
        return __atomic_exchange_n(p, x, 5);                                                                                               \
    }                                                                                                                                      \
    HOOK std::uint##bits##_t __tsan_atomic##bits##_fetch_add(volatile std::uint##bits##_t *p, std::uint##bits##_t x, int) {                \
        return __atomic_fetch_add(p, x, 5);                                                                                                \
    }                                                                                                                                      \
    HOOK std::uint##bits##_t __tsan_atomic##bits##_fetch_sub(volatile std::uint##bits##_t *p, std::uint##bits##_t x, int) {                \
        return __atomic_fetch_sub(p, x, 5);                                                                                                \
    }                                                                                                                                      \
    HOOK int __tsan_atomic##bits##_compare_exchange_strong(volatile std::uint##bits##_t *p, std::uint##bits##_t *seen,                     \
                                                           std::uint##bits##_t x, int, int) {                                              \
        return __atomic_compare_exchange_n(p, seen, x, false, 5, 5);                                                                       \
    }                                                                                                                                      \
    HOOK int __tsan_atomic##bits##_compare_exchange_weak(volatile std::uint##bits##_t *p, std::uint##bits##_t *seen,                       \
                                                         std::uint##bits##_t x, int, int) {                                                \
        return __atomic_compare_exchange_n(p, seen, x, false, 5, 5);                                                                       \
    }
ATOMIC(8) ATOMIC(16) ATOMIC(32) ATOMIC(64)
