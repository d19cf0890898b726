// square as a tutorial has it: one element a thread. T: float, or a type of 16 bits that converts from and to float.
template <typename T>
__global__ void square(const T *x, T *out, long long n) {
    const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (i < n) {
        const float v = static_cast<float>(x[i]);
        out[i] = static_cast<T>(v * v);
    }
}
