// Runs a grid's blocks on the cores; the table of kernels; the functions for Python and binding.cpp. Blocks that wait for each other hang.
#include "machine.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>

namespace cpu {
namespace {

UNCHECKED std::uint64_t take(std::uint64_t *counter) { return __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

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

}  // namespace

void Registered::enlist() { next = registered(), registered() = this; }

}  // namespace cpu

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

// size: grid and block in x, y, z. given: the number of arguments, or -1 if unknown. Returns 0, or 1 with the reason in `why`.
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
