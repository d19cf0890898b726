"""Tiles whose rows lie class by class (unaligned_tma.cuh): from a matrix whose rows begin anywhere to the elements of C, on the CPU.

No stand-in has wgmma, so the source's own text is compiled here with functions in the place of its instructions. Those of a warp or a
warpgroup need what all of its threads say: so every thread runs three times, to tell its addresses, then its factors, then to store.
Numbers are integers, so that sums are exact. What the instructions themselves do only a GPU shows.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from clusters_on_cpu import needs_compiler, said_by

from opwise.backends.cuda_src.sources import FOLDER

BEFORE = r"""
#include <array>
#include <tuple>
#include <type_traits>
struct float16 { unsigned short bits; };
struct TensorMap { const unsigned *first; int rows, columns, box_rows, box_columns; long long pitch; };
template <int C> struct ResidueMaps { TensorMap map[C]; int shift[16]; };
constexpr unsigned BASE = 16, SHARED = 232448;
int pass, turned, exchanged, size;  // how often this thread has multiplied, and exchanged
std::map<std::pair<int, int>, float> given;  // thread, exchange
std::vector<unsigned> ring(SHARED);                      // of elements, not bytes
std::vector<bool> landed(SHARED);
std::map<unsigned, std::pair<int, int>> full;            // barrier -> bytes expected less copied, arrivals
std::map<std::pair<int, int>, std::tuple<unsigned, std::array<std::array<unsigned, 4>, 128>>> factors;  // consumer, call
std::vector<std::vector<float>> products[2];  // columns of C by places of rows

unsigned place_of(unsigned line_start, int row, int byte) {  // swizzled, by address
    const unsigned line = line_start / 128 + row;
    return line * 128 + (byte / 16 ^ line & 7) * 16 + byte % 16;
}
SharedAddress shared_base() { return BASE; }
int least(long long a, int b) { return a < b ? a : b; }
template <int STAGES> struct PipelineState {
    int slot = 0;
    unsigned phase = 0;
    void next() { demand(++slot <= STAGES, "the ring is too short for this test"); }
};
struct TilePosition { unsigned m, n; };
template <int BM, int BN> TilePosition tile_position(long long m, long long n, unsigned i) {
    return {unsigned(i % (m / BM)), unsigned(i / (m / BM))};
}
struct Steps { int first, last; };
template <int S> Steps steps_of_block(int steps) { return {0, steps}; }
struct { unsigned x; } gridDim;
unsigned which;
unsigned block_index() { return which; }
int min(int a, int b) { return a < b ? a : b; }
void barrier_wait(SharedAddress, unsigned) {}
void barrier_expect(SharedAddress at, unsigned bytes) { full[at].first += bytes, full[at].second++; }
void barrier_arrive(SharedAddress at) { full[at].second++; }
void box_load(SharedAddress to, const TensorMap &map, int row, int column, SharedAddress barrier) {
    const int wide = map.box_columns;
    demand(column * size % 16 == 0 && to % 128 == 0, "a box begins where the copy engine does not take it");
    for (int y = 0; y < map.box_rows; y++)
        for (int x = 0; x < wide; x++) {
            const bool inside = row + y >= 0 && row + y < map.rows && column + x < map.columns;
            const unsigned at = wide * size == 128 ? place_of(to, y, x * size) : to + (y * wide + x) * size;
            demand(!landed[at], "two elements in one place");
            landed[at] = true, ring[at] = inside ? map.first[(row + y) * map.pitch + column + x] : 0;
        }
    full[barrier].first -= map.box_rows * wide * size;
}
unsigned read(unsigned at) { demand(landed[at], "read where nothing was copied"); return ring[at]; }
unsigned load_word(SharedAddress at) { return size == 4 ? read(at) : read(at) | read(at + 2) << 16; }
unsigned load_half(SharedAddress at) { return read(at); }
float from_lane_beside(float x) {
    if (pass == 2) given[{thread_now, exchanged}] = x;
    return pass > 2 ? given[{thread_now ^ 1, exchanged++}] : (exchanged++, 0);
}
void store_word(SharedAddress at, unsigned x) { ring[at] = size == 4 ? x : x & 0xffff; if (size == 2) ring[at + 2] = x >> 16; }
unsigned down_by(unsigned low, unsigned high, unsigned bits) { return ((unsigned long long)high << 32 | low) >> bits; }
void store_shared_16(SharedAddress to, unsigned x, unsigned y, unsigned z, unsigned w) {
    const unsigned words[] = {x, y, z, w};
    for (int i = 0; i < 16; i += size) {
        demand(!landed[to + i], "two elements in one place");
        landed[to + i] = true, ring[to + i] = size == 4 ? words[i / 4] : words[i / 4] >> i % 4 * 8 & 0xffff;
    }
}
void __syncwarp() {}
void from_float(float x, float &y) { y = x; }
void from_float(float x, float16 &y) { y.bits = (unsigned short)(unsigned)x; }
unsigned long long factor(SharedAddress tile, unsigned apart, unsigned) { demand(apart == 1024, "eight rows are 1024 bytes"); return tile; }
void products_begin() {}
void products_commit() {}
template <int> void products_wait() {}
void publish_to_copies() {}
template <int THREADS = 128> void warpgroup_barrier(int) {}
template <int N, class Storage> void register_product(float (&c)[N], const unsigned *f, unsigned long long a, int add, Storage) {
    const int consumer = thread_now / 128, thread = thread_now % 128, call = turned++;
    demand(add == (call > 0), "adds to what is not there");
    auto &[tile, words] = factors[{consumer, call}];
    if (pass == 1) tile = a, words[thread] = {f[0], f[1], f[2], f[3]};
    for (int i = 0; i < N && pass > 1; i++)
        c[i] = products[consumer][thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8][i / 4 * 8 + thread % 4 * 2 + i % 2];
}
void multiply(int consumer, int places) {  // as wgmma does
    products[consumer].assign(64, std::vector<float>(places));
    for (auto &[key, value] : factors) {
        if (key.first != consumer) continue;
        auto &[tile, words] = value;
        for (int thread = 0; thread < 128; thread++)
            for (int j = 0; j < 4; j++)
                for (int e = 0; e < 4 / size; e++) {
                    const int row = thread / 32 * 16 + thread % 32 / 4 + j % 2 * 8;
                    const int k = size == 2 ? thread % 4 * 2 + e + j / 2 * 8 : thread % 4 + j / 2 * 4;
                    const float b = size == 2 ? words[thread][j] >> 16 * e & 0xffff : words[thread][j];
                    for (int i = 0; i < places; i++)
                        products[consumer][row][i] += b * read(place_of(tile & ~127u, i, tile % 128 + k * size));
                }
    }
}
"""
MAIN = r"""
template <int C> ResidueMaps<C> classes(std::vector<unsigned> &memory, int first, int rows, int columns, int box_rows, int box_columns) {
    ResidueMaps<C> found;
    for (int c = 0; c < C; c++) {
        const int begin = first + c * columns, base = begin / C * C, of_class = (rows - c + C - 1) / C;
        found.shift[c] = c < rows ? begin - base : 1;
        found.map[c] = c < rows ? TensorMap{&memory[base], of_class, columns + begin - base, box_rows, box_columns, (long long)C * columns}
                                : TensorMap{&memory[first / C * C], 1, 1, box_rows, box_columns, (long long)C * columns};
    }
    return found;
}
float as_float(float x) { return x; }
float as_float(float16 x) { return x.bits; }
template <class T> void run(int m, int k, int n) {
    size = T::SIZE, gridDim.x = 1 << 30;
    using Storage = typename T::Storage;
    constexpr int C = T::CLASSES;
    const unsigned before[] = {1, 3};
    std::vector<unsigned> a(before[0] + m * k + 64, 9), b(before[1] + k * n + 64, 9);
    std::vector<Storage> c(m * n + 64);
    for (auto &x : c) from_float(7777, x);
    for (int i = 0; i < m * k; i++) a[before[0] + i] = (i * 2654435761u >> 20) % 5;
    for (int i = 0; i < k * n; i++) b[before[1] + i] = (i * 2246822519u >> 20) % 4;
    const auto of_a = classes<C>(a, before[0], m, k, T::STRAIGHT ? T::BM / C : T::BM, (T::STRAIGHT ? T::RAW_ROW : 128) / size);
    const auto of_b = classes<C>(b, before[1], k, n, 8, 128 / size);
    const int every = T::APART_ROWS, tiles = (m + every * T::BM - 1) / (every * T::BM) * every * ((n + T::BN - 1) / T::BN);
    for (which = 0; which < tiles; which++) {
        const T tile;
        landed.assign(SHARED, false), full.clear(), factors.clear();
        for (int warp = 0; warp < T::PRODUCERS; warp++) produce_odd<T, 1>(tile, of_a, of_b, m, k, n, warp);
        for (thread_now = 0; T::STRAIGHT && thread_now < 64; thread_now++) straighten<T, 1>(tile, of_a, m, k, n);
        for (auto &[at, told] : full)
            demand(told.first == 0 && told.second == (at < tile.full(T::STAGES) ? 4 : 1), "a stage waits for other bytes than are copied");
        for (pass = 1; pass < 4; pass++) {
            for (thread_now = 0; thread_now < 256; thread_now++) {
                turned = exchanged = 0;
                consume_odd<T, 1>(tile, of_a, of_b, c.data() + 32, m, k, n, thread_now / 128);
            }
            for (int consumer = 0; consumer < 2 && pass == 1; consumer++) multiply(consumer, T::BM);
        }
    }
    for (int i = 0; i < int(c.size()); i++) {
        const int at = i - 32, y = at / n, x = at % n;
        const bool inside = at >= 0 && at < m * n;
        float want = inside ? 0 : 7777;
        for (int d = 0; d < k && inside; d++) want += a[before[0] + y * k + d] * b[before[1] + d * n + x];
        demand(as_float(c[i]) == want, inside ? "another sum" : "stored elsewhere");
    }
}
int main() { RUNS }
"""


@needs_compiler
@pytest.mark.parametrize("storage", ["float16", "float"])
def test_every_element_of_a_tile_is_its_row_times_its_column(storage: str, tmp_path: Path) -> None:
    source = (FOLDER / "matmul/extra/unaligned_tma.cuh").read_text()
    source = "".join(line for line in source.splitlines(True) if not line.startswith("#"))
    tile = re.search(r"^template <[^\n]*struct UnalignedTile \{.*?^};\n", source, re.MULTILINE | re.DOTALL)
    rest = re.search(r"^// A tile: rows first.*?(?=^// S > 1: of the cluster)", source, re.MULTILINE | re.DOTALL)
    assert tile
    assert rest
    alone = re.sub(r"        if constexpr \(S > 1\) \{.*?\} else \{", "{", rest[0], flags=re.DOTALL)
    step = 64 if storage == "float16" else 32
    runs = "".join(f"run<UnalignedTile<{storage}, {rows}, 4, {str(i > 2).lower()}>>({m}, {k}, {n});" for i, (rows, m, k, n) in enumerate((
        (64, 61, step + 9, 127), (16, 5, 3, 1), (16, 139, 5, 13), (40, 43, step + 9, 127), (64, 3, 5, 1))))  # fmt: skip
    said_by(BEFORE + tile[0] + alone + MAIN.replace("RUNS", runs), tmp_path)
