// One kernel of a unit. A unit has up to 56, of which a first call wants one, and compiling that one alone takes a hundredth of the time.
// NVRTC does so: it defines ONE_KERNEL, and WANTED_<the kernel's name> as `, KEEP`. nvcc and the stand-in define neither and compile all.
#pragma once

#ifdef ONE_KERNEL
#define KEEP(...) __VA_ARGS__
#define DROP(...)
#define SECOND(first, second, ...) second
#define CHOICE(...) SECOND(__VA_ARGS__)
// The definition of a kernel, or nothing where another one is wanted: WANTED_<its name> then stays a word, and DROP is second.
#define IF_WANTED(name, ...) CHOICE(WANTED_##name, DROP, )(__VA_ARGS__)
#else
#define IF_WANTED(name, ...) __VA_ARGS__
#endif
