// out = x * x. In 16 bits the square is exact in float32, so that the store's rounding is the only one.
#include "common/elementwise.cuh"

struct Square {
    __device__ __forceinline__ static float of(float x) { return x * x; }
};

#define SQUARE_KERNELS(dtype, Storage, size)                                                                                               \
    MAP_KERNEL(square, Square, dtype, Storage, 16, 1)                                                                                      \
    MAP_KERNEL(square, Square, dtype, Storage, size, 8)
FOR_EACH_DTYPE(SQUARE_KERNELS)

// The classroom kernel (GPU MODE, lecture 1): a matrix under 16x16 blocks of threads, one element a thread, 4 bytes an access.
extern "C" __global__ void square_float32_textbook(const float *matrix, float *result, long long rows, long long columns) {
    const long long row = blockIdx.y * static_cast<long long>(blockDim.y) + threadIdx.y;
    const long long column = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (row < rows && column < columns) {
        const long long i = row * columns + column;
        result[i] = matrix[i] * matrix[i];
    }
}
