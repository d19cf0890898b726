// Runs a block: one fibre per CUDA thread, each until it must wait for others. Threads of a block therefore never run at the same time,
// and a race within a block shows in this one order only.
#include "machine.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace cpu {

__thread Machine *machine = nullptr;

namespace {

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

// Whether the warp operation that `one` waits for can run: every lane of its mask waits for it too, has ended, or does not exist.
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

// Reports a deadlock: the states of a waiting thread and of a thread that it waits for.
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

}  // namespace

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
        // The end of a lane may complete a warp operation of the others: wakes one of them.
        const auto begin = m.threads.begin(), end = begin + m.count;
        const auto freed = std::find_if(begin, end, [](const Thread &t) { return t.doing == Doing::MEETING && complete(t); });
        if (freed == end) return tell_deadlock();
        freed->doing = Doing::RUNS;
    }
}

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
    for (;;) yield();  // never resumed
}
void unsupported(const char *what) { report("%s: has no stand-in on a CPU", what); }

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

}  // namespace cpu
