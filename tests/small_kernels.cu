// Little CUDA kernels with known answers, and some that are wrong in ways a GPU may not show: for tests/test_cuda_on_cpu.py.
#include "../src/opwise/backends/cuda_src/common/storage.cuh"

#define KERNEL extern "C" __global__ void

// ---- right ---------------------------------------------------------------------------------------------------------------------------

KERNEL indices(unsigned *out) {
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x, threads = blockDim.x * blockDim.y * blockDim.z;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[block * threads + thread] = thread + 1000 * block;
}

KERNEL warp_moves(int *out) {
    const int lane = threadIdx.x % 32, x = 100 + threadIdx.x;
    int *row = out + threadIdx.x;
    const int stride = blockDim.x;
    row[0 * stride] = __shfl_xor_sync(0xffffffffu, x, 5);
    row[1 * stride] = __shfl_down_sync(0xffffffffu, x, 3);
    row[2 * stride] = __shfl_up_sync(0xffffffffu, x, 3);
    row[3 * stride] = __shfl_sync(0xffffffffu, x, 7);
    row[4 * stride] = __shfl_sync(0xffffffffu, x, 17, 16);
    row[5 * stride] = __shfl_xor_sync(0xffffffffu, x, 9, 8);
    row[6 * stride] = __shfl_down_sync(0xffffffffu, x, 2, 4);
    row[7 * stride] = static_cast<int>(__ballot_sync(0xffffffffu, lane % 3 == 0));
    row[8 * stride] = __any_sync(0xffffffffu, lane == 31) + 2 * __all_sync(0xffffffffu, lane < 31) + 4 * __all_sync(0xffffffffu, 1);
    row[9 * stride] = __reduce_add_sync(0xffffffffu, lane);
    row[10 * stride] = __reduce_max_sync(0xffffffffu, -lane);
    // Both halves at once, in branches of their own.
    row[11 * stride] = lane < 16 ? __reduce_add_sync(0x0000ffffu, 1) : __reduce_add_sync(0xffff0000u, lane);
    __syncwarp();
    row[12 * stride] = static_cast<int>(__shfl_xor_sync(0xffffffffu, 1e18 + lane, 1) == 1e18 + (lane ^ 1));
}

// Lanes that ended are not waited for.
KERNEL warp_without_some(int *out) {
    if (threadIdx.x % 4 == 3) return;
    out[threadIdx.x] = static_cast<int>(__ballot_sync(0xffffffffu, 1));
}

// Reverses a block's elements through dynamic shared memory, and counts them by a vote.
KERNEL reverse(const float *x, float *out, int *count) {
    extern __shared__ float row[];
    __shared__ int first, second[3];
    const int i = threadIdx.x, n = blockDim.x;
    row[i] = x[blockIdx.x * n + i];
    if (i == 0) first = 7, second[2] = 5;
    const int positive = __syncthreads_count(row[i] > 0);
    out[blockIdx.x * n + i] = row[n - 1 - i];
    if (i == n - 1) count[blockIdx.x] = positive * (first + second[2]);
}

KERNEL count_up(unsigned *wrapping, unsigned *total, float *sum, long long *least, unsigned *cas) {
    atomicInc(wrapping, 6);
    atomicAdd(total, 1u);
    atomicAdd(sum, 0.5f);
    atomicMin(least, -static_cast<long long>(blockIdx.x * blockDim.x + threadIdx.x));
    for (unsigned seen = *cas, was; (was = atomicCAS(cas, seen, seen + 2)) != seen;) seen = was;
}
KERNEL count_shared(unsigned *out) {
    __shared__ unsigned n;
    if (threadIdx.x == 0) n = 0;
    __syncthreads();
    atomicAdd(&n, threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = n;
}

template <class Storage> __device__ void convert(const float *x, Storage *narrow, float *wide, long long n) {
    const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (i >= n) return;
    from_float(x[i], narrow[i]);
    wide[i] = to_float(narrow[i]);
}
KERNEL convert_float16(const float *x, float16 *narrow, float *wide, long long n) { convert(x, narrow, wide, n); }
KERNEL convert_bfloat16(const float *x, bfloat16 *narrow, float *wide, long long n) { convert(x, narrow, wide, n); }
KERNEL pack_float16(const float *x, unsigned *pairs) { pairs[threadIdx.x] = pack_pair(x[2 * threadIdx.x], x[2 * threadIdx.x + 1], float16{}); }
KERNEL round_tf32(const float *x, unsigned *out) { asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out[threadIdx.x]) : "f"(x[threadIdx.x])); }

__device__ void copy_four(void *to, const void *from) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
}
KERNEL copy_in_groups(const float *x, float *out) {
    __shared__ float ring[2][32];
    copy_four(&ring[0][threadIdx.x], x + threadIdx.x);
    copy_four(&ring[1][threadIdx.x], x + 32 + threadIdx.x);
    asm volatile("cp.async.wait_group %0;" ::"n"(1) : "memory");
    out[threadIdx.x] = ring[0][threadIdx.x];
    asm volatile("cp.async.wait_all;" ::: "memory");
    out[32 + threadIdx.x] = ring[1][threadIdx.x];
}

// ---- wrong ---------------------------------------------------------------------------------------------------------------------------

KERNEL half_at_a_barrier() {
    if (threadIdx.x < 40) __syncthreads();
}
KERNEL two_barriers() {
    if (threadIdx.x % 2)
        __syncthreads();
    else
        __syncthreads();
}
KERNEL barrier_or_ballot(int *out) {
    if (threadIdx.x < 32)
        __syncthreads();
    else if (threadIdx.x < 40)
        out[threadIdx.x] = __ballot_sync(0xffffffffu, 1);
    __syncthreads();
}
KERNEL lanes_apart(unsigned *out) {
    if (threadIdx.x < 8)
        out[threadIdx.x] = __ballot_sync(0xffffffffu, 1);
    else
        out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1u, 8);
}
KERNEL not_in_the_mask(unsigned *out) { out[threadIdx.x] = __ballot_sync(0x1u, 1); }
KERNEL from_a_lane_that_ended(int *out) {
    if (threadIdx.x == 9) return;
    out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 9);
}

KERNEL write_past_static(float *out) {
    __shared__ float sums[32], others[32];
    sums[threadIdx.x + 1] = 1.0f;
    others[threadIdx.x] = 2.0f;
    out[threadIdx.x] = sums[threadIdx.x + 1] + others[threadIdx.x];
}
KERNEL read_before_static(const long long *back, float *out) {
    __shared__ float sums[32];
    sums[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = sums[threadIdx.x - back[0]];
}
KERNEL write_past_dynamic() {
    extern __shared__ float row[];
    row[threadIdx.x] = 1.0f;
}
KERNEL read_unwritten(float *out) {
    __shared__ float sums[32];
    if (threadIdx.x != 21) sums[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = sums[threadIdx.x];
}
KERNEL read_without_barrier(float *out) {
    __shared__ float sums[64];
    sums[threadIdx.x] = 1.0f;
    out[threadIdx.x] = sums[63 - threadIdx.x];
}
KERNEL read_of_the_last_block(float *out) {
    __shared__ float once;
    if (blockIdx.x == 0) once = 1.0f;
    out[blockIdx.x] = once;
}
KERNEL read_before_the_copy_lands(const float *x, float *out) {
    __shared__ float row[32];
    copy_four(row + threadIdx.x, x + threadIdx.x);
    out[threadIdx.x] = row[threadIdx.x];
}
KERNEL too_much_static() {
    __shared__ double room[8192];
    room[threadIdx.x] = 0;
}
KERNEL unknown_instruction(unsigned *out) { asm("bfind.u32 %0, %1;" : "=r"(out[threadIdx.x]) : "r"(threadIdx.x)); }
KERNEL trapped() {
    if (threadIdx.x == 2) __trap();
}
KERNEL __launch_bounds__(64, 2) at_most_64(int *out) { out[threadIdx.x] = 1; }
KERNEL __cluster_dims__(2, 1, 1) of_a_cluster() {}
