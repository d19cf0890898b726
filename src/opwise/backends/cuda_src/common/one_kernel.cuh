// Compiles one kernel of a unit. A unit has dozens of kernels, a first call needs one, and that one compiles in a hundredth of the time.
// For NVRTC, ONE_KERNEL is defined, and WANTED_<kernel's name> as `, KEEP`. nvcc and the stand-in define neither and compile all kernels.
#pragma once

#ifdef ONE_KERNEL
#define KEEP(...) __VA_ARGS__
#define DROP(...)
#define SECOND(first, second, ...) second
#define CHOICE(...) SECOND(__VA_ARGS__)
// The definition of a kernel, or nothing if another one is wanted: WANTED_<its name> is then not a macro, and DROP is the second argument.
#define IF_WANTED(name, ...) CHOICE(WANTED_##name, DROP, )(__VA_ARGS__)
#else
#define IF_WANTED(name, ...) __VA_ARGS__
#endif
