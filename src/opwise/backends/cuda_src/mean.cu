// mean over all elements, summed in float32, in one launch. Reads n elements once; any n >= 1, any alignment.
//
// A step is MEAN_THREADS * MEAN_PIECES 16-byte pieces. A block adds its steps, leaves the sum in scratch and ends. The last block of the
// grid waits for the others and adds their sums in a fixed order. It alone waits, and nobody waits for it: wherever a GPU has room for one
// block beside it the others come to their ends, in whatever order they start. plan.mean chooses between two ways to share the steps:
//
// mean          of few turns: one wave of blocks walks through memory together, a step each at a time; the last block has steps too.
// mean_ordered  of many turns: some multiprocessors read a fifth faster than others, and the equal shares of one wave drift apart in
//               memory, by 8 % of 1 GiB on one H200. So blocks are short and begin in order of memory as the hardware finds room. Those
//               with a single step come last, and let all multiprocessors end together. The last block has none and only adds: it begins
//               before the others end, and has added the early sums by then.
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

// The elements before the first 16-byte boundary, and those after the last whole piece, are block 0's: adds this thread's to `sum`.
template <class Storage>
__device__ __forceinline__ void add_outside(const Storage *x, long long n, long long head, long long pieces, float &sum) {
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
// replayed. So for mean_ordered, where the last block has none, and the room for them is a multiple of 16 bytes.
template <class Storage> __device__ __forceinline__ void mean(const Storage *x, Storage *out, long long n, unsigned *words) {
    using P = Piece<Storage, 16>;
    __shared__ float of_warps[32];

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
    if (blockIdx.x == 0) add_outside(x, n, head, pieces, sums[0]);
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

// Four words at once.
__device__ __forceinline__ uint4 words_at(const unsigned *at) {
    uint4 w;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w) : "l"(at) : "memory");
    return w;
}
// Waits for `count` sums, adds them and leaves 0 in their places. There are thousands: one after the other would take a thread longer than
// the last blocks need.
__device__ __forceinline__ float taken(unsigned *words, unsigned count) {
    constexpr int AT_ONCE = 4;
    float total = 0.0f;
    for (unsigned base = threadIdx.x * 4; base < count; base += MEAN_THREADS * 4 * AT_ONCE) {
        uint4 w[AT_ONCE];
        bool missing;
        do {
            missing = false;
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const unsigned at = base + k * MEAN_THREADS * 4;
                w[k] = at < count ? words_at(words + at) : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const unsigned at = base + k * MEAN_THREADS * 4;
                missing |= (at < count && w[k].x == 0) || (at + 1 < count && w[k].y == 0) || (at + 2 < count && w[k].z == 0) ||
                           (at + 3 < count && w[k].w == 0);
            }
        } while (missing);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const unsigned at = base + k * MEAN_THREADS * 4;
            total += (__uint_as_float(w[k].x) + __uint_as_float(w[k].y)) + (__uint_as_float(w[k].z) + __uint_as_float(w[k].w));
            if (at < count) *reinterpret_cast<uint4 *>(words + at) = make_uint4(0, 0, 0, 0);
        }
    }
    return total;
}

// The first `large` blocks have `each` consecutive steps, those behind them one. The last block of more than one has none.
template <class Storage>
__device__ __forceinline__ void mean_ordered(const Storage *x, Storage *out, long long n, unsigned each, unsigned large, unsigned *words) {
    using P = Piece<Storage, 16>;
    __shared__ float of_warps[32];
    const int misaligned = static_cast<int>(reinterpret_cast<unsigned long long>(x) % 16);
    const long long head = min(static_cast<long long>((16 - misaligned) % 16 / sizeof(Storage)), n);
    const long long pieces = (n - head) / P::COUNT;
    const auto *body = reinterpret_cast<const typename P::Raw *>(x + head);

    constexpr unsigned STEP = MEAN_THREADS * MEAN_PIECES;
    const unsigned last = gridDim.x - 1;
    float total;
    if (last == 0 || blockIdx.x < last) {
        const bool is_large = blockIdx.x < large;
        long long i = static_cast<long long>(is_large ? blockIdx.x * each : blockIdx.x + large * (each - 1)) * STEP;
        unsigned left = is_large ? each : 1;
        float sums[MEAN_PIECES] = {};
        const auto *from = body + i + threadIdx.x;
#pragma unroll 1
        for (; left > 0 && i + STEP <= pieces; left--, i += STEP, from += STEP) {
            typename P::Raw raw[MEAN_PIECES];
#pragma unroll
            for (int k = 0; k < MEAN_PIECES; k++) raw[k] = from[k * MEAN_THREADS];
#pragma unroll
            for (int k = 0; k < MEAN_PIECES; k++) sums[k] += sum_of<Storage>(raw[k]);
        }
        if (left > 0) {  // a step that the end cuts off
#pragma unroll
            for (int k = 0; k < MEAN_PIECES; k++) {
                const long long at = i + k * MEAN_THREADS + threadIdx.x;
                if (at < pieces) sums[k] += sum_of<Storage>(body[at]);
            }
        }
        if (blockIdx.x == 0) add_outside(x, n, head, pieces, sums[0]);
        total = over_block<Sum>(added(sums), of_warps);
        if (last == 0) {
            if (threadIdx.x == 0) from_float(total / static_cast<float>(n), out[0]);
            return;
        }
        if (threadIdx.x == 0) put_word(words + blockIdx.x, word_of(total));
        return;
    }
    total = over_block<Sum>(taken(words, last), of_warps);
    if (threadIdx.x == 0) from_float(total / static_cast<float>(n), out[0]);
}

#define MEAN_KERNEL(dtype, Storage, size)                                                                                                  \
    IF_WANTED(mean_##dtype,                                                                                                                \
    extern "C" __global__ void __launch_bounds__(MEAN_THREADS, MEAN_BLOCKS)                                                                \
        mean_##dtype(const Storage *__restrict__ x, Storage *__restrict__ out, long long n, unsigned *words) {                             \
        mean<Storage>(x, out, n, words);                                                                                                   \
    })                                                                                                                                     \
    IF_WANTED(mean_ordered_##dtype,                                                                                                        \
    extern "C" __global__ void __launch_bounds__(MEAN_THREADS, MEAN_BLOCKS)                                                                \
        mean_ordered_##dtype(const Storage *__restrict__ x, Storage *__restrict__ out, long long n, long long each, long long large,       \
                             unsigned *words) {                                                                                            \
        mean_ordered<Storage>(x, out, n, static_cast<unsigned>(each), static_cast<unsigned>(large), words);                                \
    })
FOR_EACH_DTYPE(MEAN_KERNEL)
