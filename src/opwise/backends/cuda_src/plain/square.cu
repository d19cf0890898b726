// square as in a tutorial: one element per thread. T: float, or a 16-bit type that converts from and to float.
template <typename T>
__global__ void square(const T *x, T *out, long long n) {
    const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (i < n) {
        const float v = static_cast<float>(x[i]);
        out[i] = static_cast<T>(v * v);
    }
}
