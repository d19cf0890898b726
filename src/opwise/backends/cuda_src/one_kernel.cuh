// One kernel of a unit. A unit has dozens, of which a first call wants one: NVRTC compiles that one alone, in a hundredth of the time of
// softmax.cu, where ONE_KERNEL is defined, and WANTED_<the kernel's name> as `, KEEP`. nvcc and the stand-in, which define neither, compile all.
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
