// A block's shared memory, with a state for each byte: outside of all variables, not written yet, or written.
#pragma once
#include <cstdint>
#include <cstring>
#include <cstdlib>

namespace cpu {

constexpr std::size_t ARENA = 512 << 10, REDZONE = 256, FIRST = 1024;  // bytes; dynamic shared memory begins at FIRST
constexpr std::size_t MOST_DYNAMIC = 163 << 10, MOST_STATIC = 48 << 10;  // of an sm_80 block
constexpr int MOST_VARIABLES = 64;
enum State : std::uint8_t { OUTSIDE = 0, UNWRITTEN = 1, WRITTEN = 2 };

struct Variable {
    const void *key;
    const char *name;
    std::size_t begin, bytes;
};

struct SharedMemory {
    char *bytes = static_cast<char *>(std::aligned_alloc(4096, ARENA));
    std::uint8_t *states = static_cast<std::uint8_t *>(std::calloc(ARENA, 1));
    Variable variables[MOST_VARIABLES];
    int count = 0;
    std::size_t end = 0, of_statics = 0;

    // A block must not see what the previous one wrote: `add` marks its bytes as unwritten and fills them with 0xff.
    void begin_block(std::size_t dynamic) {
        std::memset(states, OUTSIDE, end);
        count = 0, of_statics = 0, end = FIRST;
        if (dynamic > 0) add(nullptr, "dynamic shared memory", dynamic, 16);
        end += REDZONE;
    }
    Variable &add(const void *key, const char *name, std::size_t size, std::size_t alignment) {
        const std::size_t begin = (end + alignment - 1) / alignment * alignment;
        std::memset(states + begin, UNWRITTEN, size);
        std::memset(bytes + begin, 0xff, size);
        end = begin + size + REDZONE;
        return variables[count++] = Variable{key, name, begin, size};
    }
    // The variable nearest to byte `at`.
    const Variable *near(std::size_t at) const {
        const Variable *best = nullptr;
        std::size_t least = ~std::size_t{0};
        for (int i = 0; i < count; i++) {
            const Variable &v = variables[i];
            const std::size_t away = at < v.begin ? v.begin - at : at >= v.begin + v.bytes ? at - (v.begin + v.bytes) : 0;
            if (away < least) least = away, best = &v;
        }
        return best;
    }
};

}  // namespace cpu
