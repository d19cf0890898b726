// matmul as in a tutorial: blocks of 16x16 threads, one element of C per thread, tiles of A and B in shared memory. T: float, or a 16-bit
// type that converts from and to float. Sums are float32.
template <typename T>
__global__ void matmul(const T *a, const T *b, T *c, long long m, long long k, long long n) {
    __shared__ float tile_a[16][16], tile_b[16][16];
    const long long row = blockIdx.y * 16LL + threadIdx.y, column = blockIdx.x * 16LL + threadIdx.x;
    float sum = 0.0f;
    for (long long step = 0; step < k; step += 16) {
        const long long k_of_a = step + threadIdx.x, k_of_b = step + threadIdx.y;
        tile_a[threadIdx.y][threadIdx.x] = row < m && k_of_a < k ? static_cast<float>(a[row * k + k_of_a]) : 0.0f;
        tile_b[threadIdx.y][threadIdx.x] = k_of_b < k && column < n ? static_cast<float>(b[k_of_b * n + column]) : 0.0f;
        __syncthreads();
        for (int i = 0; i < 16; i++) sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = static_cast<T>(sum);
}
