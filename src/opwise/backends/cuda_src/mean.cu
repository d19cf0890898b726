// mean over all elements, summed in float32, in one launch. Reads n elements once; any n >= 1, any alignment.
//
// A step is MEAN_THREADS * MEAN_PIECES 16-byte pieces. A block adds its steps, writes the sum to scratch and ends. The grid's last block
// adds its own steps, waits for the others and adds all sums in a fixed order. It is the only block that waits and no block waits for it,
// so there is no deadlock if the GPU can run one more block at the same time, in any order of blocks.
//
// Some SMs read a fifth faster than others: with one wave of equal shares they drift apart, by 8 % of 1 GiB on one H200. So blocks are
// short, and in memory order. One-step blocks come last, so that all SMs end together. With so many blocks the instructions before a
// block's first load matter: 32-bit arithmetic where it suffices, and the first step before the loop. plan.mean distributes the steps.
#include "common/elements.cuh"

constexpr int MEAN_THREADS = 512;
constexpr int MEAN_PIECES = 4;  // loads in flight per thread: 96 KiB per SM
constexpr int MEAN_BLOCKS = 3;  // per SM

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

// By block 0: adds the elements before the first 16-byte boundary and after the last whole piece to the threads' sums.
template <class Storage>
__device__ __forceinline__ void add_outside(const Storage *x, long long n, unsigned head, unsigned long long pieces, float &sum) {
    const long long rest = head + pieces * Piece<Storage, 16>::COUNT + threadIdx.x;
    if (threadIdx.x < head) sum += to_float(x[threadIdx.x]);
    if (rest < n) sum += to_float(x[rest]);
}

template <int N> __device__ __forceinline__ float added(const float (&x)[N]) {
    float sum = x[0];
#pragma unroll
    for (int k = 1; k < N; k++) sum += x[k];
    return sum;
}

template <class Storage>
__device__ __forceinline__ void add_step(const typename Piece<Storage, 16>::Raw *from, float (&sums)[MEAN_PIECES]) {
    typename Piece<Storage, 16>::Raw raw[MEAN_PIECES];
#pragma unroll
    for (int k = 0; k < MEAN_PIECES; k++) raw[k] = from[k * MEAN_THREADS];
#pragma unroll
    for (int k = 0; k < MEAN_PIECES; k++) sums[k] += sum_of<Storage>(raw[k]);
}

// A block publishes its sum as a nonzero word, since 0 means not written yet: +0 becomes -0. No other data depends on the word, so relaxed
// accesses suffice, without a fence or an atomic.
__device__ __forceinline__ unsigned word_of(float sum) {
    const unsigned bits = __float_as_uint(sum);
    return bits == 0 ? 0x80000000u : bits;
}
__device__ __forceinline__ void put_word(unsigned *at, unsigned word) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(word) : "memory");
}
__device__ __forceinline__ unsigned word_at(const unsigned *at) {
    unsigned word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
    return word;
}
// Waits for `count` sums, adds this thread's share and resets the words to 0. AT_ONCE loads are in flight, since there may be thousands of
// sums. Loads of four neighbouring words are 0.2 to 0.4 us slower, for 64 words as for 2048.
__device__ __forceinline__ float taken(unsigned *words, unsigned count) {
    constexpr int AT_ONCE = 8;
    float total = 0.0f;
#pragma unroll 1
    for (unsigned base = threadIdx.x; base < count; base += MEAN_THREADS * AT_ONCE) {
        unsigned word[AT_ONCE];
        bool missing;
        do {
            missing = false;
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                word[k] = base + k * MEAN_THREADS < count ? word_at(words + base + k * MEAN_THREADS) : 0x80000000u;
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) missing |= word[k] == 0;
        } while (missing);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            total += __uint_as_float(word[k]);
            if (base + k * MEAN_THREADS < count) put_word(words + base + k * MEAN_THREADS, 0);
        }
    }
    return total;
}

// The sum over a block, in thread 0 only: reading 16 sums from shared memory is faster than five shuffles. `of_warps` as in over_block.
constexpr int MEAN_WARPS = MEAN_THREADS / 32;
__device__ __forceinline__ float to_thread_0(float x, float (&of_warps)[MEAN_WARPS]) {
    x = over_warp<Sum>(x);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
    __syncthreads();
    return threadIdx.x == 0 ? added(of_warps) : 0.0f;
}

// The first `large` blocks have `each` consecutive steps, the others one. words: one per block, unused in a grid of one block. They must be
// 0 at the first launch and are 0 after each, so that a launch can be replayed.
template <class Storage>
__device__ __forceinline__ void mean(const Storage *x, Storage *out, long long n, unsigned each, unsigned large, unsigned *words) {
    using P = Piece<Storage, 16>;
    __shared__ alignas(16) float of_warps[MEAN_WARPS];
    const unsigned before = (0u - static_cast<unsigned>(reinterpret_cast<unsigned long long>(x))) % 16 / sizeof(Storage);
    const unsigned head = n < before ? static_cast<unsigned>(n) : before;
    const auto *body = reinterpret_cast<const typename P::Raw *>(x + before);
    const unsigned long long pieces = static_cast<unsigned long long>(n - head) / P::COUNT;

    constexpr unsigned STEP = MEAN_THREADS * MEAN_PIECES;
    const bool is_large = blockIdx.x < large;
    unsigned step = is_large ? blockIdx.x * each : blockIdx.x + large * (each - 1);
    const unsigned end = step + (is_large ? each : 1), whole = min(static_cast<unsigned>(pieces / STEP), end);
    const auto *from = body + static_cast<unsigned long long>(step) * STEP + threadIdx.x;
    float sums[MEAN_PIECES] = {};
    if (step < whole) {
        add_step<Storage>(from, sums);
#pragma unroll 1
        while (++step < whole) {
            from += STEP;
            add_step<Storage>(from, sums);
        }
    }
    if (step < end) {  // the last step, which is incomplete
        const unsigned long long first = static_cast<unsigned long long>(step) * STEP + threadIdx.x;
#pragma unroll
        for (int k = 0; k < MEAN_PIECES; k++)
            if (first + k * MEAN_THREADS < pieces) sums[k] += sum_of<Storage>(body[first + k * MEAN_THREADS]);
    }
    if (blockIdx.x == 0) add_outside(x, n, head, pieces, sums[0]);
    float total = to_thread_0(added(sums), of_warps);

    if (gridDim.x > 1) {
        if (threadIdx.x == 0) put_word(words + blockIdx.x, word_of(total));
        if (blockIdx.x != gridDim.x - 1) return;
        __syncthreads();  // of_warps is reused
        total = to_thread_0(taken(words, gridDim.x), of_warps);
    }
    if (threadIdx.x == 0) from_float(total / static_cast<float>(n), out[0]);
}

// shares: `each` in the low 32 bits, `large` in the high ones.
#define MEAN_KERNEL(dtype, Storage, size)                                                                                                  \
    IF_WANTED(mean_##dtype,                                                                                                                \
    extern "C" __global__ void __launch_bounds__(MEAN_THREADS, MEAN_BLOCKS)                                                                \
        mean_##dtype(const Storage *__restrict__ x, Storage *__restrict__ out, long long n, unsigned long long shares, unsigned *words) {  \
        mean<Storage>(x, out, n, static_cast<unsigned>(shares), static_cast<unsigned>(shares >> 32), words);                               \
    })
FOR_EACH_DTYPE(MEAN_KERNEL)
