// Split-K over the S blocks of a cluster: the reduction of their partial sums through distributed shared memory, in a fixed order.
//
// A block writes its partial sums, BM x BN floats, to its shared memory, over the ring. After a cluster barrier each block reduces 1/S of
// the tile's elements, reading the parts of ranks 0, 1, ..., and stores them. Neighbouring threads store neighbouring elements, so that C
// needs no alignment.
#pragma once
#include "common/cluster.cuh"
#include "common/ptx.cuh"

// A block's steps of K in a cluster of S: steps * rank / S to steps * (rank + 1) / S, possibly none.
struct Steps {
    int first, last;
};
template <int S> __device__ __forceinline__ Steps steps_of_block(int steps) {
    if constexpr (S == 1) {
        return {0, steps};
    } else {
        const long long rank = rank_in_cluster();
        return {static_cast<int>(steps * rank / S), static_cast<int>(steps * (rank + 1) / S)};
    }
}

template <int S_, int BM_, int BN_, int THREADS_> struct ClusterReduce {
    static constexpr int S = S_, BM = BM_, BN = BN_, THREADS = THREADS_;
    static constexpr int BYTES = BM * BN * 4, OWNED = BM * BN / S, EACH = OWNED > THREADS ? OWNED / THREADS : 1;
    static constexpr int TOGETHER = EACH * S > 64 ? 64 / S : EACH;  // elements of a thread whose parts are loaded at once
    static_assert(THREADS % BN == 0 && BN % 8 == 0 && (OWNED % THREADS == 0 || OWNED < THREADS) && EACH % TOGETHER == 0);

    SharedAddress room;  // BYTES
    __device__ __forceinline__ explicit ClusterReduce(SharedAddress room) : room(room) {}
    // The byte offset of an element. Swizzled, so that the same columns of 4 consecutive rows are in different banks.
    __device__ __forceinline__ static int at(int row, int column) { return (row * BN + (column ^ ((row & 3) << 3) % BN)) * 4; }
    __device__ __forceinline__ SharedAddress place(int row, int column) const { return room + at(row, column); }
    __device__ __forceinline__ void write_partial(int row, int column, float x) const { store_shared(place(row, column), x); }

    // By all threads, after they have written their partial sums. c: the tile's first element, in a matrix of n columns.
    template <class Storage> __device__ __forceinline__ void store(Storage *c, long long n, int rows_left, int columns_left) const {
        cluster_arrive_written();
        cluster_wait();
        const int first = static_cast<int>(rank_in_cluster()) * OWNED + thread_index();
        const int row = first / BN, column = first % BN;
        const bool takes = (OWNED >= THREADS || thread_index() < OWNED) && column < columns_left;
        SharedAddress from[S];
#pragma unroll
        for (int s = 0; s < S; s++) from[s] = of_block(room, s);
#pragma unroll
        for (int i = 0; i < EACH; i += TOGETHER) {
            float parts[TOGETHER][S];
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
#pragma unroll
                for (int s = 0; s < S; s++) {
                    const int down = (i + j) * (THREADS / BN);
                    parts[j][s] = load_from_block(from[s] + at(row + down, column), takes && row + down < rows_left);
                }
            }
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
                const int down = (i + j) * (THREADS / BN);
                if (!takes || row + down >= rows_left) continue;
                float total = parts[j][0];
#pragma unroll
                for (int s = 1; s < S; s++) total = sum(total, parts[j][s]);
                from_float(total, c[(row + down) * n + column]);
            }
        }
        cluster_arrive();  // a block must not end while others read its shared memory
        cluster_wait();
    }
};

// The same cluster barriers, for threads without sums.
__device__ __forceinline__ void reduce_without_partials() {
    cluster_arrive_written();
    cluster_wait();
    cluster_arrive();
    cluster_wait();
}
