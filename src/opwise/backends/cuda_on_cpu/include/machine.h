// The state of a block on one core (Machine) and of a launch (Grid).
#pragma once
#include <mutex>
#include <string>
#include <vector>

#include "fibre.h"
#include "stand_in.h"

#include "shared_memory.h"

#define UNCHECKED __attribute__((no_sanitize("thread")))

namespace cpu {

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
    const char *file;  // of the barrier at which it waits
    int line;
    unsigned mask;  // of the warp operation at which it waits (meet)
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

struct Machine {  // kept for the next launch
    SharedMemory shared;
    std::vector<Thread> threads;
    Context scheduler;
    Grid *grid = nullptr;
    uint3 block;
    unsigned count = 0, ended = 0, waiting = 0;
    int votes = 0, votes_before = 0;
    Thread *now = nullptr;
};

extern __thread Machine *machine __attribute__((tls_model("initial-exec"), visibility("hidden")));

inline std::string of_three(uint3 x) { return "(" + std::to_string(x.x) + ", " + std::to_string(x.y) + ", " + std::to_string(x.z) + ")"; }

UNCHECKED inline bool is_set(const bool *flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED); }
UNCHECKED inline void set(bool *flag) { __atomic_store_n(flag, true, __ATOMIC_RELAXED); }

void run_block(Machine &m, std::uint64_t number);

}  // namespace cpu
