// out = x * x. The float32 square of a 16-bit x is exact, so only the store rounds.
#include "common/elementwise.cuh"

struct Square {
    __device__ __forceinline__ static float of(float x) { return x * x; }
};

#define SQUARE_KERNELS(dtype, Storage, size)                                                                                               \
    MAP_KERNEL(square, Square, dtype, Storage, 16, 1)                                                                                      \
    MAP_KERNEL(square, Square, dtype, Storage, size, 8)
FOR_EACH_DTYPE(SQUARE_KERNELS)
