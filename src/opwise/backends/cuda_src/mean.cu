// mean over all elements, summed in float32, in one launch. Reads n elements once; any n >= 1, any alignment.
//
// The blocks walk through memory together, a step of MEAN_THREADS * MEAN_PIECES 16-byte pieces each at a time: shares of consecutive
// pieces, each far from the other, are read 3 % slower. A block leaves its sum in scratch and ends. The last block of the grid waits for
// the others and adds their sums in a fixed order. It alone waits, and nobody waits for it: wherever a GPU has room for one block beside it
// the others come to their ends, in whatever order they start.
#include "elements.cuh"

constexpr int MEAN_THREADS = 512;
constexpr int MEAN_PIECES = 4;  // loads in flight a thread: 3 blocks a multiprocessor keep 96 KiB on the way
constexpr int MEAN_BLOCKS = 3;  // a multiprocessor, in one wave

template <class Storage> __device__ __forceinline__ float sum_of(typename Piece<Storage, 16>::Raw raw) {
    constexpr int COUNT = Piece<Storage, 16>::COUNT;
    float values[COUNT];
    Piece<Storage, 16>::unpack(raw, values);
#pragma unroll
    for (int half = COUNT / 2; half > 0; half /= 2) {
#pragma unroll
        for (int i = 0; i < half; i++) values[i] += values[i + half];
    }
    return values[0];
}

template <int N> __device__ __forceinline__ float added(const float (&x)[N]) {
    float sum = x[0];
#pragma unroll
    for (int k = 1; k < N; k++) sum += x[k];
    return sum;
}

// A block tells its sum by a word other than 0, which is what a place holds that no block has written: +0 is told as -0. The word is all
// that is told, nothing is read behind it: relaxed accesses are enough, and no block waits for a fence or an atomic.
__device__ __forceinline__ unsigned word_of(float sum) {
    const unsigned bits = __float_as_uint(sum);
    return bits == 0 ? 0x80000000u : bits;
}
__device__ __forceinline__ void put_word(unsigned *at, unsigned word) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(word) : "memory");
}
// Waits for a sum, and leaves 0 in its place.
__device__ __forceinline__ float take_word(unsigned *at) {
    unsigned word;
    do {
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
    } while (word == 0);
    put_word(at, 0);
    return __uint_as_float(word);
}

// words: one a block, unused in a grid of one. They must be 0 at the first launch and are 0 again after each, so that a launch can be
// replayed.
template <class Storage> __device__ __forceinline__ void mean(const Storage *x, Storage *out, long long n, unsigned *words) {
    using P = Piece<Storage, 16>;
    __shared__ float of_warps[32];

    // The elements before the first 16-byte boundary, and those after the last whole piece, are block 0's.
    const int misaligned = static_cast<int>(reinterpret_cast<unsigned long long>(x) % 16);
    const long long head = min(static_cast<long long>((16 - misaligned) % 16 / sizeof(Storage)), n);
    const long long pieces = (n - head) / P::COUNT;
    const auto *body = reinterpret_cast<const typename P::Raw *>(x + head);

    constexpr long long STEP = MEAN_THREADS * MEAN_PIECES;
    float sums[MEAN_PIECES] = {};
    long long i = blockIdx.x * STEP;  // of the block; its threads take i + threadIdx.x, and so on
    for (; i + STEP <= pieces; i += gridDim.x * STEP) {
        const auto *from = body + i + threadIdx.x;
        typename P::Raw raw[MEAN_PIECES];
#pragma unroll
        for (int k = 0; k < MEAN_PIECES; k++) raw[k] = from[k * MEAN_THREADS];
#pragma unroll
        for (int k = 0; k < MEAN_PIECES; k++) sums[k] += sum_of<Storage>(raw[k]);
    }
#pragma unroll
    for (int k = 0; k < MEAN_PIECES; k++) {  // one step at most is cut off by the end
        const long long at = i + k * MEAN_THREADS + threadIdx.x;
        if (at < pieces) sums[k] += sum_of<Storage>(body[at]);
    }
    if (blockIdx.x == 0) {
        const long long rest = head + pieces * P::COUNT + threadIdx.x;
        if (threadIdx.x < head) sums[0] += to_float(x[threadIdx.x]);
        if (rest < n) sums[0] += to_float(x[rest]);
    }
    float total = over_block<Sum>(added(sums), of_warps);

    if (gridDim.x > 1) {
        if (threadIdx.x == 0) put_word(words + blockIdx.x, word_of(total));
        if (blockIdx.x != gridDim.x - 1) return;
        __syncthreads();  // lets of_warps be used again
        total = 0.0f;
        for (unsigned i = threadIdx.x; i < gridDim.x; i += MEAN_THREADS) total += take_word(words + i);
        total = over_block<Sum>(total, of_warps);
    }
    if (threadIdx.x == 0) from_float(total / static_cast<float>(n), out[0]);
}

#define MEAN_KERNEL(dtype, Storage, size)                                                                                                  \
    IF_WANTED(mean_##dtype,                                                                                                                \
    extern "C" __global__ void __launch_bounds__(MEAN_THREADS, MEAN_BLOCKS)                                                                \
        mean_##dtype(const Storage *__restrict__ x, Storage *__restrict__ out, long long n, unsigned *words) {                             \
        mean<Storage>(x, out, n, words);                                                                                                   \
    })
FOR_EACH_DTYPE(MEAN_KERNEL)
