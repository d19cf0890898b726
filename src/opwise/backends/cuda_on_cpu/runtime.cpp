// Runs a grid on the CPU's cores: a block at a time on each, a fibre a CUDA thread, which runs until it must wait for others. Threads of a
// block therefore never run at the same time, and a kernel whose blocks wait for each other hangs.
#include "fibre.h"
#include "stand_in.h"

#include <sched.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "shared_memory.h"

#define UNCHECKED __attribute__((no_sanitize("thread")))

namespace cpu {
namespace {

struct Copy {
    std::size_t to;
    const void *from;
    std::size_t bytes, given;
    int group;
};

enum class Doing { RUNS, BARRIER, MEETING, ENDED };

struct Thread {
    Context context;
    char *stack = nullptr;
    uint3 index;
    Doing doing;
    const char *file;  // of the barrier where it waits
    int line;
    unsigned mask;  // of the meeting where it waits
    Act act;
    void *mine;
    const char *what;
    std::vector<Copy> copies;
    int groups = 0;  // committed so far
};

struct Grid {
    const Registered *kernel;
    uint3 grid, block;
    void **arguments;
    std::size_t shared_bytes;
    std::uint64_t blocks, taken = 0;
    bool failed = false;
    std::mutex writing;
    std::string message;
};

struct Machine {  // what one core runs a block on; kept for the next launch
    SharedMemory shared;
    std::vector<Thread> threads;
    Context scheduler;
    Grid *grid = nullptr;
    uint3 block;
    unsigned count = 0, ended = 0, waiting = 0;
    int votes = 0, votes_before = 0;
    Thread *now = nullptr;
};

thread_local Machine *machine __attribute__((tls_model("initial-exec"))) = nullptr;

UNCHECKED std::uint64_t take(std::uint64_t *counter) { return __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }
UNCHECKED bool is_set(const bool *flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED); }
UNCHECKED void set(bool *flag) { __atomic_store_n(flag, true, __ATOMIC_RELAXED); }

std::string of_three(uint3 x) { return "(" + std::to_string(x.x) + ", " + std::to_string(x.y) + ", " + std::to_string(x.z) + ")"; }

void fail(const Thread &thread, const std::string &message) {
    Grid &grid = *machine->grid;
    const std::lock_guard lock(grid.writing);
    if (grid.message.empty())
        grid.message = "block " + of_three(machine->block) + ", thread " + of_three(thread.index) + ": " + message;
    set(&grid.failed);
}

void yield() { change(machine->now->context, machine->scheduler); }

void run_thread() {
    const Grid &grid = *machine->grid;
    grid.kernel->run(grid.kernel->address, grid.arguments);
    machine->now->doing = Doing::ENDED;
    machine->ended++;
    yield();
    std::abort();
}

// May what `one` waits for happen? All of its mask are with it, have ended, or were never there.
bool complete(const Thread &one) {
    const unsigned first = static_cast<unsigned>(&one - machine->threads.data()) / 32 * 32;
    for (unsigned i = 0; i < 32 && first + i < machine->count; i++) {
        const Thread &other = machine->threads[first + i];
        if (!(one.mask >> i & 1u) || other.doing == Doing::ENDED) continue;
        if (other.doing != Doing::MEETING || other.act != one.act || other.mask != one.mask) return false;
    }
    return true;
}

std::string state_of(const Thread &t) {
    if (t.doing == Doing::ENDED) return "has ended";
    if (t.doing == Doing::BARRIER) return std::string("waits at __syncthreads, ") + t.file + ":" + std::to_string(t.line);
    char mask[16];
    std::snprintf(mask, sizeof mask, "%#x", t.mask);
    return std::string("waits in ") + t.what + " for the lanes " + mask;
}

// Nothing can go on. Says of one thread that waits, and of one that it waits for in vain, what they do.
void tell_deadlock() {
    const auto begin = machine->threads.begin(), end = begin + machine->count;
    const auto at_barrier = std::find_if(begin, end, [](const Thread &t) { return t.doing == Doing::BARRIER; });
    if (at_barrier != end) {
        const auto other = std::find_if(begin, end, [](const Thread &t) { return t.doing != Doing::BARRIER; });
        return fail(*at_barrier, "a barrier that not all threads reach: it " + state_of(*at_barrier) + ", thread " + of_three(other->index) +
                                     " " + state_of(*other));
    }
    const auto meets = std::find_if(begin, end, [](const Thread &t) { return t.doing == Doing::MEETING; });
    const auto first = begin + (meets - begin) / 32 * 32;
    for (unsigned i = 0; i < 32 && first + i < end; i++) {
        const Thread &other = first[i];
        if ((meets->mask >> i & 1u) && other.doing != Doing::ENDED && (other.act != meets->act || other.mask != meets->mask))
            return fail(*meets, "lanes of a warp diverge: it " + state_of(*meets) + ", lane " + std::to_string(i) + " " + state_of(other));
    }
}

void run_block(Machine &m, std::uint64_t number) {
    Grid &grid = *m.grid;
    m.block = {static_cast<unsigned>(number % grid.grid.x), static_cast<unsigned>(number / grid.grid.x % grid.grid.y),
               static_cast<unsigned>(number / grid.grid.x / grid.grid.y)};
    m.shared.begin_block(grid.shared_bytes);
    m.ended = m.waiting = 0, m.votes = 0;
    for (unsigned i = 0; i < m.count; i++) {
        Thread &t = m.threads[i];
        if (t.stack == nullptr) t.stack = new_stack();
        t.context.begin(t.stack, &run_thread);
        t.index = {i % grid.block.x, i / grid.block.x % grid.block.y, i / grid.block.x / grid.block.y};
        t.doing = Doing::RUNS, t.copies.clear(), t.groups = 0;
    }
    while (m.ended < m.count) {
        bool progress = false;
        for (unsigned i = 0; i < m.count; i++) {
            if (m.threads[i].doing != Doing::RUNS) continue;
            m.now = &m.threads[i], progress = true;
            change(m.scheduler, m.now->context);
            if (is_set(&grid.failed)) return;
        }
        if (progress) continue;
        // Lanes that ended may have been the last that others waited for: one of these others looks again.
        const auto begin = m.threads.begin(), end = begin + m.count;
        const auto freed = std::find_if(begin, end, [](const Thread &t) { return t.doing == Doing::MEETING && complete(t); });
        if (freed == end) return tell_deadlock();
        freed->doing = Doing::RUNS;
    }
}

std::mutex keeping;
std::vector<Machine *> idle;

void run_blocks(Grid *grid) {
    Machine *m = nullptr;
    {
        const std::lock_guard lock(keeping);
        if (!idle.empty()) m = idle.back(), idle.pop_back();
    }
    if (m == nullptr) m = new Machine;
    m->grid = grid, m->count = grid->block.x * grid->block.y * grid->block.z;
    if (m->threads.size() < m->count) m->threads.resize(m->count);
    machine = m;
    for (std::uint64_t number; !is_set(&grid->failed) && (number = take(&grid->taken)) < grid->blocks;) run_block(*m, number);
    machine = nullptr;
    const std::lock_guard lock(keeping);
    idle.push_back(m);
}

const Registered *&registered() {
    static const Registered *first = nullptr;
    return first;
}

std::string refusal(const Registered &kernel, const Grid &grid, int given) {
    const std::uint64_t threads = std::uint64_t{grid.block.x} * grid.block.y * grid.block.z;
    if (kernel.cluster) return "it runs in thread block clusters, which have no stand-in";
    if (threads == 0 || threads > static_cast<std::uint64_t>(kernel.most_threads))
        return std::to_string(threads) + " threads a block, 1 to " + std::to_string(kernel.most_threads) + " are taken";
    if (grid.blocks == 0 || grid.grid.y > 65535 || grid.grid.z > 65535 || grid.grid.x > 0x7fffffffu)
        return "a grid of " + of_three(grid.grid) + " blocks, 1 to 2^31 - 1, 65535, 65535 are taken";
    if (grid.shared_bytes > MOST_DYNAMIC)
        return std::to_string(grid.shared_bytes) + " bytes of dynamic shared memory, " + std::to_string(MOST_DYNAMIC) + " are there";
    if (given >= 0 && given != kernel.parameters)
        return std::to_string(given) + " arguments, " + std::to_string(kernel.parameters) + " are taken";
    for (int i = 0; i < kernel.parameters; i++) {
        const auto value = *static_cast<const std::int64_t *>(grid.arguments[i]);
        const bool address = value >= std::int64_t{1} << 16, number = value < std::int64_t{1} << 40 && value > -(std::int64_t{1} << 40);
        if (kernel.pointers[i] ? !address : !number)
            return "argument " + std::to_string(i) + " is " + std::to_string(value) + (kernel.pointers[i] ? ", an address is taken" : ", a number is taken");
    }
    return "";
}

// The part of shared memory at p, as a message names it.
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

// Every plain access of a kernel comes through here.
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

uint3 thread_index() { return machine->now->index; }
uint3 block_index() { return machine->block; }
uint3 block_size() { return machine->grid->block; }
uint3 grid_size() { return machine->grid->grid; }
int lane() { return static_cast<int>((machine->now - machine->threads.data()) % 32); }

void report(const char *format, ...) {
    char text[512];
    va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof text, format, values);
    va_end(values);
    fail(*machine->now, text);
    for (;;) yield();  // never taken up again
}
void unsupported(const char *what) { report("%s: has no stand-in on a CPU", what); }

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

int block_vote(int predicate, const char *file, int line) {
    Machine &m = *machine;
    Thread &mine = *m.now;
    mine.file = file, mine.line = line;
    m.votes += predicate;
    if (++m.waiting < m.count) {
        mine.doing = Doing::BARRIER;
        yield();
        return machine->votes_before;
    }
    for (unsigned i = 0; i < m.count; i++) {
        Thread &t = m.threads[i];
        if (t.line != line || std::strcmp(t.file, file) != 0)
            report("threads wait at different barriers: it at %s:%d, thread %s at %s:%d", file, line, of_three(t.index).c_str(), t.file, t.line);
    }
    for (unsigned i = 0; i < m.count; i++) m.threads[i].doing = Doing::RUNS;
    m.votes_before = m.votes, m.votes = 0, m.waiting = 0;
    return m.votes_before;
}
void block_barrier(const char *file, int line) { block_vote(0, file, line); }
void fence() { __sync_synchronize(); }

void meet(unsigned mask, Act act, void *mine, const char *what) {
    Thread &t = *machine->now;
    if (!(mask >> lane() & 1u)) report("lane %d takes part in %s for the lanes %#x, of which it is none", lane(), what, mask);
    t.mask = mask, t.act = act, t.mine = mine, t.what = what, t.doing = Doing::MEETING;
    while (t.doing == Doing::MEETING) {
        if (complete(t)) {
            Thread *warp = &t - lane();
            void *all[32] = {};
            for (int i = 0; i < 32; i++) {
                const bool here = warp + i < machine->threads.data() + machine->count && warp[i].doing == Doing::MEETING;
                if (here && warp[i].act == act && warp[i].mask == mask) all[i] = warp[i].mine;
            }
            act(all);
            for (int i = 0; i < 32; i++) {
                if (all[i] != nullptr) warp[i].doing = Doing::RUNS, warp[i].act = nullptr;
            }
            return;
        }
        yield();
        if (t.act == nullptr) return;  // another lane has acted for all
        t.doing = Doing::MEETING;
    }
}

void Registered::enlist() { next = registered(), registered() = this; }

}  // namespace cpu

// ---- what Python and binding.cpp call ------------------------------------------------------------------------------------------------

extern "C" {

const cpu::Registered *opwise_kernel(const char *name) {
    for (const auto *k = cpu::registered(); k != nullptr; k = k->next) {
        if (std::strcmp(k->name, name) == 0) return k;
    }
    return nullptr;
}
const cpu::Registered *opwise_kernel_at(const void *address) {
    for (const auto *k = cpu::registered(); k != nullptr; k = k->next) {
        if (k->address == address) return k;
    }
    return nullptr;
}
int opwise_parameters(const cpu::Registered *kernel) { return kernel->parameters; }

// size: grid and block in x, y, z. given: the number of arguments, or -1 where the caller's own is unknown. 0, or 1 and why.
int opwise_launch(const cpu::Registered *kernel, const unsigned *size, void **arguments, int given, std::size_t shared_bytes, char *why,
                  std::size_t room) {
    cpu::Grid grid{kernel, {size[0], size[1], size[2]}, {size[3], size[4], size[5]}, arguments, shared_bytes,
                   std::uint64_t{size[0]} * size[1] * size[2], 0, false, {}, {}};
    grid.message = cpu::refusal(*kernel, grid, given);
    if (grid.message.empty()) {
        cpu_set_t mine;
        const int cores = sched_getaffinity(0, sizeof mine, &mine) == 0 ? CPU_COUNT(&mine) : 1;
        std::vector<std::thread> others;
        for (std::uint64_t i = 1; i < std::min<std::uint64_t>(cores, grid.blocks); i++) others.emplace_back(cpu::run_blocks, &grid);
        cpu::run_blocks(&grid);
        for (std::thread &other : others) other.join();
    }
    std::snprintf(why, room, "%s", grid.message.c_str());
    return grid.message.empty() ? 0 : 1;
}

}  // extern "C"

// ---- what the compiler calls under -fsanitize=thread: no part of its runtime is linked, these are ours -------------------------------

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
