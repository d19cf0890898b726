// C = A B where A has 8 rows at most: B is read once, wherever its rows begin, and that is the time. On any GPU.
//
// A block has COLUMNS columns of B, one of its threads GRANULE bytes of a row: neighbours lie side by side, and all take rows in turns.
// Sums meet by shuffles, where a warp has several rows, and in shared memory, in a fixed order.
#pragma once
#include "common/elements.cuh"
#include "matmul/kernels/tile.cuh"

// Two elements.
template <class Half> struct PairOfHalves {
    static constexpr int COUNT = 2;
    using Raw = unsigned;
    __device__ __forceinline__ static void unpack(Raw raw, float *x) {
        x[0] = to_float(Half{static_cast<unsigned short>(raw)});
        x[1] = to_float(Half{static_cast<unsigned short>(raw >> 16)});
    }
};
template <> struct Piece<float16, 4> : PairOfHalves<float16> {};
template <> struct Piece<bfloat16, 4> : PairOfHalves<bfloat16> {};
template <> struct Piece<float, 8> {
    static constexpr int COUNT = 2;
    using Raw = float2;
    __device__ __forceinline__ static void unpack(Raw raw, float *x) { x[0] = raw.x, x[1] = raw.y; }
};

template <class Storage_, int M_, int COLUMNS_, int BLOCKS_, int GRANULE_> struct GemvRowsTile {
    using Storage = Storage_;
    using Pieces = Piece<Storage, GRANULE_>;
    static constexpr int M = M_, COLUMNS = COLUMNS_, THREADS = 1024 / BLOCKS_, WARPS = THREADS / 32, V = Pieces::COUNT;
    static constexpr int BESIDE = COLUMNS / V, AT_ONCE = THREADS / BESIDE;  // threads of a row, rows
    __device__ __forceinline__ static int first() { return thread_index() / BESIDE; }  // of a thread's rows; the next is AT_ONCE below
    // A thread multiplies one turn's rows while the other's are under way.
    static constexpr bool TURNS = M > 2 || (M > 1 && V > 1);
    // Rows of a thread, of a turn, that are under way at once, as registers allow.
    static constexpr int OF_TURN = V == 1 ? 8 : V == 2 ? (M > 4 ? 4 : 8) : M > 2 ? 2 : 4, OF_ONE = V == 1 ? 16 : 8;
    static constexpr int STEPS = !TURNS ? OF_ONE : BESIDE < 2 * OF_TURN ? BESIDE / 2 : OF_TURN;
    // Of several rows of A, in shared memory: K at a time, and a place for each of as many as one access reads.
    static constexpr int DEPTH = THREADS, EACH = DEPTH / AT_ONCE, TOGETHER = M < 3 ? M : M > 4 ? 8 : 4;
    static constexpr int PARTS = BESIDE < 32 ? WARPS : AT_ONCE;  // of a column's sum, in shared memory
    // Floats of shared memory: of sums, and of A before them, or behind them where nobody waits in between.
    static constexpr int SUMS = M * COLUMNS * (PARTS + 1), OF_A = M > 1 ? DEPTH * TOGETHER : 0, BEHIND = TURNS ? 0 : (SUMS + 3) / 4 * 4;
    static constexpr int ROOM = TURNS && SUMS > OF_A ? SUMS : BEHIND + OF_A;
    static constexpr bool BY_WARPS = COLUMNS <= WARPS && WARPS == 32;  // does a warp end a column?
    static_assert(32 % BESIDE == 0 || BESIDE % 32 == 0);
    static_assert(!TURNS || EACH % (2 * STEPS) == 0);
};

__device__ __forceinline__ float over_distances(float x, int from, int to) {
#pragma unroll
    for (int distance = from; distance >= to; distance /= 2) x = sum(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
}

// One row of A, by each thread from the L1: adds its rows of B, times A's element, to its sums.
template <class Tile>
__device__ __forceinline__ void add_rows(float (&sums)[1][Tile::V], const typename Tile::Storage *a, const typename Tile::Storage *b,
                                         long long k, long long n, bool inside) {
    constexpr int V = Tile::V, STEPS = Tile::STEPS, AT_ONCE = Tile::AT_ONCE;
    using Pieces = typename Tile::Pieces;
    if (!inside) return;
    const int first = Tile::first();
    const auto *from_a = a + first;
    const auto *from_b = b + first * n;
    const auto take = [&](int rows) {  // of STEPS; all of them are under way at once
        typename Tile::Storage raw_a[STEPS];
        typename Pieces::Raw raw_b[STEPS];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (s >= rows) break;
            raw_b[s] = *reinterpret_cast<const typename Pieces::Raw *>(from_b + s * (AT_ONCE * n));
            raw_a[s] = from_a[s * AT_ONCE];
        }
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (s >= rows) break;
            float y[V];
            Pieces::unpack(raw_b[s], y);
#pragma unroll
            for (int v = 0; v < V; v++) sums[0][v] = fused(to_float(raw_a[s]), y[v], sums[0][v]);
        }
    };
    long long left = (k - first + AT_ONCE - 1) / AT_ONCE;
#pragma unroll 1
    for (; left >= STEPS; left -= STEPS, from_a += STEPS * AT_ONCE, from_b += STEPS * (AT_ONCE * n)) take(STEPS);
    take(static_cast<int>(left));
}

// Two rows of A: DEPTH of K at a time in shared memory, where one access has the elements of both. By all threads of the block.
template <class Tile>
__device__ __forceinline__ void add_rows_for_two(float (&sums)[2][1], float *of_a, const typename Tile::Storage *a,
                                                 const typename Tile::Storage *b, long long k, long long n, bool inside) {
    constexpr int M = 2, DEPTH = Tile::DEPTH, STEPS = Tile::STEPS, AT_ONCE = Tile::AT_ONCE;
    using Storage = typename Tile::Storage;
    const int first = Tile::first();
    const Storage *from_b = b + first * n;
#pragma unroll 1
    for (long long k0 = 0; k0 < k; k0 += DEPTH) {
        const int depth = least(k - k0, DEPTH), left = inside ? (depth - first + AT_ONCE - 1) / AT_ONCE : 0;
        Storage own[M], raw[STEPS];
        const bool has = thread_index() < depth;
#pragma unroll
        for (int r = 0; r < M; r++)
            if (has) own[r] = a[r * k + k0 + thread_index()];
        const auto fetch = [&](int done) {
#pragma unroll
            for (int s = 0; s < STEPS; s++)
                if (done + s < left) raw[s] = from_b[(done + s) * (AT_ONCE * n)];
        };
        fetch(0);
        if (k0 > 0) block_barrier();  // every thread has read the last of A
#pragma unroll
        for (int r = 0; r < M; r++)
            if (has) of_a[thread_index() * M + r] = to_float(own[r]);
        block_barrier();
#pragma unroll 1
        for (int done = 0; done < left; done += STEPS) {
            if (done > 0) fetch(done);
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                if (done + s >= left) break;
                const float y = to_float(raw[s]);
                const float *x = of_a + (first + (done + s) * AT_ONCE) * M;
#pragma unroll
                for (int r = 0; r < M; r++) sums[r][0] = fused(x[r], y, sums[r][0]);
            }
        }
        from_b += DEPTH * n;
    }
}

// Of 3 to 8 rows of A, m, or of 2 where pieces are wide: DEPTH of K at a time in shared memory, where one access has the elements of all
// rows. By all threads of the block. Rows of B are fetched two turns ahead, beyond these DEPTH too, and A for the next ones: what counts is
// that nobody waits. k of pitch, the length of A's rows.
template <class Tile>
__device__ __forceinline__ void add_rows_for_several(float (&sums)[Tile::M][Tile::V], float *of_a, const typename Tile::Storage *a,
                                                     const typename Tile::Storage *b, int m, long long pitch, long long k, long long n,
                                                     bool inside) {
    constexpr int M = Tile::M, DEPTH = Tile::DEPTH, TOGETHER = Tile::TOGETHER, STEPS = Tile::STEPS, AT_ONCE = Tile::AT_ONCE;
    constexpr int EACH = Tile::EACH, V = Tile::V;
    using Storage = typename Tile::Storage;
    using Pieces = typename Tile::Pieces;
    using Raw = typename Pieces::Raw;
    const int first = Tile::first();
    const Storage *from_b = b + first * n;
    long long rest = inside ? (k - first + AT_ONCE - 1) / AT_ONCE : 0;  // rows of this thread
    Raw turns[2][STEPS];
    const auto fetch = [&](Raw(&to)[STEPS], int done, int left) {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (done + s < left) to[s] = *reinterpret_cast<const Raw *>(from_b);
            from_b += AT_ONCE * n;
        }
    };
    const auto multiply = [&](const Raw(&from)[STEPS], int done, int left) {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (done + s >= left) break;
            float y[V];
            Pieces::unpack(from[s], y);
            const float *x = of_a + (first + (done + s) * AT_ONCE) * TOGETHER;
#pragma unroll
            for (int r = 0; r < M; r++) {
#pragma unroll
                for (int v = 0; v < V; v++) sums[r][v] = fused(x[r], y[v], sums[r][v]);
            }
        }
    };
    Storage own[M] = {};
    a += thread_index();
    const auto fetch_a = [&](int left) {
#pragma unroll
        for (int r = 0; r < M; r++)
            if (thread_index() < left && r < m) own[r] = a[r * pitch];
        a += DEPTH;
    };
    fetch_a(least(k, DEPTH));  // before B, since all wait for it
    fetch(turns[0], 0, least(rest, EACH));
    fetch(turns[1], STEPS, least(rest, EACH));
#pragma unroll 1
    for (long long k0 = 0; k0 < k; k0 += DEPTH, rest -= EACH) {
        if (k0 > 0) block_barrier();  // every thread has read the last of A
#pragma unroll
        for (int r = 0; r < M; r++) of_a[thread_index() * TOGETHER + r] = to_float(own[r]);
        block_barrier();
        fetch_a(least(k - k0 - DEPTH, DEPTH));
        const int left = least(rest, EACH + 2 * STEPS);
#pragma unroll 1
        for (int done = 0; done < EACH && done < left; done += 2 * STEPS) {
            multiply(turns[0], done, left);
            fetch(turns[0], done + 2 * STEPS, left);
            multiply(turns[1], done + STEPS, left);
            fetch(turns[1], done + 3 * STEPS, left);
        }
    }
    block_barrier();
}

// m = M, or 5 to 8 of M = 8. n is a multiple of V; B begins on GRANULE bytes.
template <class Tile>
__device__ __forceinline__ void gemv_rows_matmul(const typename Tile::Storage *a, const typename Tile::Storage *b, typename Tile::Storage *c,
                                           long long m, long long k, long long n) {
    constexpr int M = Tile::M, COLUMNS = Tile::COLUMNS, V = Tile::V, BESIDE = Tile::BESIDE;
    __shared__ alignas(16) float room[Tile::ROOM];
    auto &parts = *reinterpret_cast<float(*)[M][COLUMNS][Tile::PARTS + 1]>(room);
    const int rows = M > 4 ? static_cast<int>(m) : M;
    const int lane = thread_index() % 32, warp = thread_index() / 32;
    const long long column0 = static_cast<long long>(block_index()) * COLUMNS, column = column0 + thread_index() % BESIDE * V;
    float sums[M][V] = {};
    if constexpr (M == 1)
        add_rows<Tile>(sums, a, b + column, k, n, column < n);
    else if constexpr (!Tile::TURNS)
        add_rows_for_two<Tile>(sums, room + Tile::BEHIND, a, b + column, k, n, column < n);
    else
        add_rows_for_several<Tile>(sums, room, a, b + column, rows, k, k, n, column < n);
#pragma unroll
    for (int r = 0; r < M; r++) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float of_warp = over_distances(sums[r][v], 16, BESIDE);  // as it is, where a warp has one row
            const int beside = thread_index() % BESIDE;
            if (BESIDE >= 32)
                parts[r][beside * V + v][thread_index() / BESIDE] = of_warp;
            else if (lane < BESIDE)
                parts[r][beside * V + v][warp] = of_warp;
        }
    }
    block_barrier();
    if constexpr (Tile::BY_WARPS) {
        if (warp >= COLUMNS) return;
#pragma unroll
        for (int r = 0; r < M; r++) {
            const float total = over_distances(parts[r][warp][lane], 16, 1);
            if (lane == 0 && column0 + warp < n && r < rows) from_float(total, c[r * n + column0 + warp]);
        }
    } else {
        for (int i = thread_index(); i < M * COLUMNS; i += Tile::THREADS) {
            const float *part = parts[i / COLUMNS][i % COLUMNS];
            float total = part[0];
#pragma unroll
            for (int p = 1; p < Tile::PARTS; p++) total = sum(total, part[p]);
            if (column0 + i % COLUMNS < n && i / COLUMNS < rows) from_float(total, c[i / COLUMNS * n + column0 + i % COLUMNS]);
        }
    }
}
