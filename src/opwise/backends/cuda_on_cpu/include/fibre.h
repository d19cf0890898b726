// Switches between stacks: in assembly on x86-64 (2 ns), elsewhere by ucontext, which makes two system calls per switch.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#if !defined(__x86_64__) || defined(OPWISE_UCONTEXT)
#define OPWISE_BY_UCONTEXT
#include <ucontext.h>
#endif

namespace cpu {

constexpr std::size_t STACK = 128 << 10;  // bytes of a fibre's stack, allocated lazily by the system

// A stack with a guard page below it: an overflow faults instead of overwriting another stack.
inline char *new_stack() {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void *all = mmap(nullptr, STACK + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED || mprotect(all, page, PROT_NONE) != 0) std::abort();
    return static_cast<char *>(all) + page;
}

#ifdef OPWISE_BY_UCONTEXT
struct Context {
    ucontext_t saved;
    void begin(char *stack, void (*entry)()) {
        getcontext(&saved);
        saved.uc_stack.ss_sp = stack, saved.uc_stack.ss_size = STACK, saved.uc_link = nullptr;
        makecontext(&saved, entry, 0);
    }
};
inline void change(Context &from, Context &to) { swapcontext(&from.saved, &to.saved); }
#else
struct Context {
    void *stack_pointer;
    void begin(char *stack, void (*entry)()) {
        auto *top = reinterpret_cast<std::uintptr_t *>(stack + STACK);  // a multiple of 16
        *--top = 0;                                                     // the return address of `entry`, which never returns
        *--top = reinterpret_cast<std::uintptr_t>(entry);
        for (int i = 0; i < 6; i++) *--top = 0;
        stack_pointer = top;
    }
};
// Saves the callee-saved registers on one stack and restores them from the other.
extern "C" void opwise_change_stacks(void **from, void *to);
__asm__(R"(
    .text
    .p2align 4
    .type opwise_change_stacks,@function
    .hidden opwise_change_stacks
    .weak opwise_change_stacks
opwise_change_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size opwise_change_stacks, .-opwise_change_stacks
)");
inline void change(Context &from, Context &to) { opwise_change_stacks(&from.stack_pointer, to.stack_pointer); }
#endif

}  // namespace cpu
