// C = A B in 16 bits or TF32 where A has 16 rows at most and B's rows begin anywhere, B itself on 16 bytes, by mma.sync: B is read once by
// pieces of 16 bytes.
//
// As in matmul_slanted.cuh a warp has every V-th row of B, which all begin as far behind a piece's beginning; as in matmul_few.cuh a lane's
// pieces, its columns of V instructions, go straight into its registers. A goes through shared memory, since what a lane needs of a row of A
// are every V-th of its elements. A cluster's S blocks share K by turns of a step. Sums meet in shared memory, each warp's shifted by what its
// rows are, in a fixed order; the last row of B is added by itself.
#pragma once
#include "matmul_few.cuh"

// DEEP: rows of B of a lane in a step, which are its share of K of DEEP * sizeof(Storage) / 8 instructions.
template <class Storage_, int WARPS_, int DEEP_> struct SlantedFewTile {
    using Storage = Storage_;
    static constexpr int BM = 16, V = 16 / sizeof(Storage), BN = 8 * V, WARPS = WARPS_, THREADS = 32 * WARPS;
    static constexpr int DEEP = DEEP_, ACROSS = 1, EIGHTS = V, WORDS = 4;  // as FewTile's
    static constexpr int OF_LANE_A = DEEP * sizeof(Storage);               // bytes of a row of A that a lane needs for it
    static constexpr int DEPTH = 4 * DEEP, OF_BLOCK = DEPTH * WARPS;       // rows of B of a step: of a warp, of a block
    static constexpr int EACH_A = BM * OF_BLOCK / THREADS;                 // elements of A that a thread brings for a step
    static constexpr int ROW_A = DEPTH * sizeof(Storage);                  // bytes: of a row of A of a warp; warps lie apart by four banks
    static constexpr int OF_WARP_A = BM * ROW_A + 16, OF_A = WARPS * OF_WARP_A;
    static constexpr int PITCH = BN + 4, PARTS = WARPS * BM * PITCH * 4;   // of a row of sums, floats; of all, bytes, where A was
    static constexpr int ROOM = PARTS > 2 * OF_A ? PARTS : 2 * OF_A;       // before the sums that other blocks read
    static_assert(WARPS % V == 0 && (OF_LANE_A == 8 || OF_LANE_A == 16) && OF_BLOCK <= THREADS && THREADS % OF_BLOCK == 0);

    // Of a step's rows of B: where those of a warp begin, each V below the last; and where in shared memory a row's element of A belongs.
    __device__ __forceinline__ static int first(int warp) { return warp % V + V * DEPTH * (warp / V); }
    __device__ __forceinline__ static int place_a(int row_of_b) {
        const int number = row_of_b / V;  // within those that begin so
        return (number / DEPTH * V + row_of_b % V) * OF_WARP_A + number % DEPTH * static_cast<int>(sizeof(Storage));
    }
    // Elements by which a warp's rows begin behind a piece's beginning.
    __device__ __forceinline__ static int slant(int warp, long long n) { return static_cast<int>(warp % V * (n % V)) % V; }
};

__device__ __forceinline__ void store_element(SharedAddress to, float x) { store_shared(to, x); }
template <class Half> __device__ __forceinline__ void store_element(SharedAddress to, Half x) { store_shared(to, x.bits); }

// m <= 16, n > V; B begins on 16 bytes. S: blocks of a cluster that share K. The grid is of any size from S times n / (BN - V) blocks on.
template <class Tile, int S = 1>
__device__ __forceinline__ void slanted_few_matmul(const typename Tile::Storage *a, const typename Tile::Storage *b,
                                                   typename Tile::Storage *c, long long m, long long k, long long n) {
    using Storage = typename Tile::Storage;
    constexpr int V = Tile::V, BM = Tile::BM, BN = Tile::BN, WARPS = Tile::WARPS, OF_BLOCK = Tile::OF_BLOCK, EACH_A = Tile::EACH_A;
    const int lane = thread_index() % 32, warp = thread_index() / 32, g = lane / 4, t = lane % 4;
    const int rank = S > 1 ? static_cast<int>(rank_in_cluster()) : 0, slant = Tile::slant(warp, n);
    const long long blocks = gridDim.x / S, each = ((n + blocks - 1) / blocks + V - 1) / V * V, column0 = block_index() / S * each;
    const int columns = least(n - column0, static_cast<int>(each)), from = g * V - slant;  // of the block; of the lane
    const long long pieced = k - 1;                                                        // rows of B that are read by pieces
    const int steps = static_cast<int>((pieced + OF_BLOCK - 1) / OF_BLOCK), left = steps > rank ? (steps - rank + S - 1) / S : 0;
    const bool inside = from < columns;
    const SharedAddress room = shared_base();

    long long of_b = static_cast<long long>(rank) * OF_BLOCK + Tile::first(warp) + t * Tile::DEEP * V;  // this lane's first row of a step
    const Storage *from_b = b + of_b * n + column0 + from;
    StepOfFew<Tile> turns[2];
    const auto fetch = [&](StepOfFew<Tile> &to) {
        const Storage *row_of_b = from_b;
#pragma unroll
        for (int i = 0; i < Tile::DEEP; i++) {
            load_global_words<16>(to.b[i][0], row_of_b, inside && of_b + i * V < pieced);
            row_of_b = opaque(row_of_b + V * n);
        }
        of_b += S * OF_BLOCK, from_b += S * OF_BLOCK * n;
    };
    const int row_a = thread_index() / OF_BLOCK, element_a = thread_index() % OF_BLOCK;
    const SharedAddress to_a = room + Tile::place_a(element_a) + row_a * Tile::ROW_A;
    constexpr int FURTHER_A = Tile::THREADS / OF_BLOCK;  // rows
    long long of_a = static_cast<long long>(rank) * OF_BLOCK + element_a;
    Storage own[EACH_A];
    const auto fetch_a = [&]() {
#pragma unroll
        for (int i = 0; i < EACH_A; i++) {
            const int row = row_a + i * FURTHER_A;
            own[i] = Storage{};
            if (row < m && of_a < pieced) own[i] = a[row * k + of_a];
        }
        of_a += S * OF_BLOCK;
    };
    const auto store_a = [&](int buffer) {
#pragma unroll
        for (int i = 0; i < EACH_A; i++) store_element(to_a + buffer * Tile::OF_A + i * FURTHER_A * Tile::ROW_A, own[i]);
    };
    float sums[Tile::EIGHTS][4] = {};
    fetch_a();
#pragma unroll
    for (int turn = 0; turn < 2; turn++)
        if (turn < left) fetch(turns[turn]);
    store_a(0);
    fetch_a();
    block_barrier();
#pragma unroll 1
    for (int step = 0; step < left; step += 2) {
#pragma unroll
        for (int turn = 0; turn < 2; turn++) {
            if (step + turn >= left) break;
            store_a(1 - turn);
            fetch_a();
            const SharedAddress mine = room + turn * Tile::OF_A + warp * Tile::OF_WARP_A + g * Tile::ROW_A + t * Tile::OF_LANE_A;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint4 &to = turns[turn].a[r];
                if constexpr (Tile::OF_LANE_A == 16) {
                    const Words4 words = load_shared_16(mine + r * 8 * Tile::ROW_A);
                    to = make_uint4(words.x, words.y, words.z, words.w);
                } else {
                    load_shared_8(mine + r * 8 * Tile::ROW_A, to.x, to.y);
                }
            }
            multiply_few(sums, turns[turn]);
            if (step + turn + 2 < left) fetch(turns[turn]);
            block_barrier();
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const SharedAddress to = room + ((warp * BM + g + i / 2 * 8) * Tile::PITCH + (2 * t + i % 2) * V) * 4;
#pragma unroll
        for (int e = 0; e < V; e += 4)
            store_shared_16(to + 4 * e, {bits_of(sums[e][i]), bits_of(sums[e + 1][i]), bits_of(sums[e + 2][i]), bits_of(sums[e + 3][i])});
    }
    block_barrier();
    const int column = thread_index() % BN;
    const auto total_of = [&](int row) {
        float total = 0.0f;
        if (rank == 0) total = to_float(a[row * k + pieced]) * to_float(b[pieced * n + column0 + column]);
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            total = sum(total, load_shared_float(room + ((w * BM + row) * Tile::PITCH + column + Tile::slant(w, n)) * 4));
        return total;
    };
    constexpr int DOWN = Tile::THREADS / BN;
    const bool there = column < columns;
    if constexpr (S == 1) {
#pragma unroll
        for (int row = thread_index() / BN; row < BM; row += DOWN)
            if (there && row < m) from_float(total_of(row), c[row * n + column0 + column]);
    } else {
        const Meeting<S, BM, BN, Tile::THREADS> meeting(room + Tile::ROOM);
#pragma unroll
        for (int row = thread_index() / BN; row < BM; row += DOWN)
            if (there && row < m) meeting.lay(row, column, total_of(row));
        meeting.store(c + column0, n, static_cast<int>(m), columns);
    }
}
