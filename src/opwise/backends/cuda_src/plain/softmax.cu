// softmax as in a tutorial: a block of 256 threads per row, which it reads three times. T: float, or a 16-bit type that converts from and
// to float.
template <typename T>
__global__ void softmax(const T *x, T *out, long long columns) {
    __shared__ float shared[256];
    const T *row = x + blockIdx.x * columns;
    float maximum = static_cast<float>(row[0]);
    for (long long i = threadIdx.x; i < columns; i += 256) maximum = fmaxf(maximum, static_cast<float>(row[i]));
    shared[threadIdx.x] = maximum;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + half]);
    }
    __syncthreads();
    maximum = shared[0];
    __syncthreads();
    float sum = 0.0f;
    for (long long i = threadIdx.x; i < columns; i += 256) sum += expf(static_cast<float>(row[i]) - maximum);
    shared[threadIdx.x] = sum;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    }
    __syncthreads();
    sum = shared[0];
    for (long long i = threadIdx.x; i < columns; i += 256)
        out[blockIdx.x * columns + i] = static_cast<T>(expf(static_cast<float>(row[i]) - maximum) / sum);
}
