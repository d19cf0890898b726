// mean as in a tutorial, in two launches: each block adds a part of x in shared memory, then one block adds the blocks' sums.
// In, Out: float, or a 16-bit type that converts from and to float. Blocks of 256 threads.
template <typename In, typename Out>
__global__ void mean(const In *x, Out *out, long long n, long long divisor) {
    __shared__ float sums[256];
    float sum = 0.0f;
    for (long long i = blockIdx.x * 256LL + threadIdx.x; i < n; i += gridDim.x * 256LL) sum += static_cast<float>(x[i]);
    sums[threadIdx.x] = sum;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = static_cast<Out>(sums[0] / static_cast<float>(divisor));
}
