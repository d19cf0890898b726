"""What test programs of clusters_on_cpu.py put before a kernel's text where all threads of all blocks run at once: each a fibre.

A fibre goes on until it waits: at a barrier of its block or warp, or in `others_go`. Blocks get on at a pace that differs from turn to
turn. `after_turn` is the program's own: what happens beside the threads, such as a copy that lands.
"""

from __future__ import annotations

FIBRES = r"""
#include <algorithm>
#include <cmath>
#include <ucontext.h>
using std::min;
struct Words4 { unsigned x, y, z, w; };
constexpr unsigned SHARED = 232448, BASE = 16;  // of a block of sm_90; where its dynamic shared memory begins
struct Gate { int count = 0, turn = 0; };
struct Block { std::vector<char> memory; Gate all, warps[32], named[16]; };
struct Fibre { ucontext_t at; std::vector<char> stack; int block, thread; bool done = false; };
std::vector<Block> blocks_now;
std::vector<Fibre> fibres;
Fibre *now;
ucontext_t home;
struct { unsigned x; } gridDim, blockDim;
#define thread_index() (now->thread)
unsigned block_index() { return now->block; }
int warp_index() { return now->thread / 32; }
bool elected() { return now->thread % 32 == 0; }
void others_go() { swapcontext(&now->at, &home); }
void pass(Gate &gate, int all) {
    const int turn = gate.turn;
    if (++gate.count == all) gate.count = 0, gate.turn++;
    else while (gate.turn == turn) others_go();
}
void block_barrier() { pass(blocks_now[now->block].all, blockDim.x); }
void warp_barrier() { pass(blocks_now[now->block].warps[now->thread / 32], 32); }
char *memory(SharedAddress at, int size) {
    demand(at >= BASE && at + size <= blocks_now[now->block].memory.size(), "out of shared memory");
    return blocks_now[now->block].memory.data() + at;
}
template <class T> T loaded(SharedAddress at) {
    demand(at % sizeof(T) == 0, "a load that is not aligned");
    T x;
    std::memcpy(&x, memory(at, sizeof x), sizeof x);
    return x;
}
template <class T> void stored(SharedAddress at, const T &x) {
    demand(at % sizeof x == 0, "a store that is not aligned"), std::memcpy(memory(at, sizeof x), &x, sizeof x);
}
SharedAddress shared_base() { return BASE; }
void store_shared(SharedAddress at, float x) { stored(at, x); }
void store_shared_16(SharedAddress at, const Words4 &v) { stored(at, v); }
int least(long long a, int b) { return a < b ? int(a) : b; }
void barriers_publish() {}
"""
RUN = r"""
void after_turn();
void (*body)();
void begin() { body(), now->done = true, others_go(); }
// What nobody has written to `shared` bytes a block reads as `unwritten`.
void run(int grid, int threads, int shared, char unwritten, void (*kernel)()) {
    body = kernel, gridDim.x = grid, blockDim.x = threads;
    blocks_now.assign(grid, Block());
    for (auto &block : blocks_now) block.memory.assign(BASE + shared, unwritten);
    fibres.clear(), fibres.resize(grid * threads);
    for (int i = 0; i < grid * threads; i++) {
        Fibre &fibre = fibres[i];
        fibre.block = i / threads, fibre.thread = i % threads, fibre.stack.resize(65536), getcontext(&fibre.at);
        fibre.at.uc_stack.ss_sp = fibre.stack.data(), fibre.at.uc_stack.ss_size = fibre.stack.size(), fibre.at.uc_link = &home;
        makecontext(&fibre.at, begin, 0);
    }
    for (int turn = 0, left = 1; left; turn++) {
        demand(turn < 100000, "waits for ever");
        const int some = 1 + std::rand() % 3;
        left = 0;
        for (auto &fibre : fibres) {
            if (fibre.done) continue;
            left++;
            if ((fibre.block * 7 + turn) % some == 0) now = &fibre, swapcontext(&home, &fibre.at);
        }
        after_turn();
    }
}
"""
