// gelu (tanh form) as in a tutorial: one element per thread. T: float, or a 16-bit type that converts from and to float.
template <typename T>
__global__ void gelu(const T *x, T *out, long long n) {
    const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (i < n) {
        const float v = static_cast<float>(x[i]);
        const float inner = 0.7978845608f * (v + 0.044715f * v * v * v);  // sqrt(2 / pi)
        out[i] = static_cast<T>(0.5f * v * (1.0f + tanhf(inner)));
    }
}
