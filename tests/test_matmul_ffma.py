"""float32 products whose rows begin anywhere, and whose K is shared by warps and blocks: ffma.cuh, of every thread, on the CPU.

No stand-in has the copy engine or clusters. So the source's own text is compiled here with functions in the place of its instructions: a
box is copied, swizzled, at the wait of each thread that has come to it, out of matrices that lie among NaN; what the warps lay, and what
the blocks do, is kept apart, and a thread runs again from its beginning for each of those. What the instructions themselves do, and in
which order they are done, only a GPU shows.
"""

from __future__ import annotations

import re
from pathlib import Path

from clusters_on_cpu import needs_compiler, said_by

from opwise.backends.cuda_src.matmul.kernels.ffma import CLASSES, CONFIGS, THREAD
from opwise.backends.cuda_src.sources import FOLDER

BEFORE = r"""
#include <algorithm>
#include <cmath>
using std::min;
struct Words4 { unsigned x, y, z, w; };
constexpr unsigned SHARED = 232448;
unsigned block_now;
bool laying, aligning;  // this thread has begun to lay its sums; all lanes of its warp move the rows of B
std::vector<std::pair<SharedAddress, float>> moved;
int pass, met;
struct Stop {};
char ring[SHARED], laid[SHARED];
bool written[SHARED];
struct TensorMap { const float *base; int rows, columns, pitch, box_rows, box_columns; };
template <int CLASSES> struct ResidueMaps { TensorMap map[CLASSES]; int shift[16]; };
struct Box { SharedAddress to; const TensorMap *map; int row, column; };
std::map<unsigned, std::vector<std::vector<Box>>> filled;  // by barrier
std::map<unsigned, unsigned> told, waits;
unsigned block_index() { return block_now; }
int warp_index() { return thread_now / 32; }
bool elected() { return thread_now % 32 == 0; }
SharedAddress shared_base() { return 16; }
float fused(float a, float b, float c) { return a * b + c; }
int least(long long a, int b) { return a < b ? int(a) : b; }
Words4 apart(const float *x, unsigned) { Words4 all; std::memcpy(&all, x, 16); return all; }
void barrier_init(SharedAddress, int) {}
void barriers_publish() {}
void barrier_expect(SharedAddress barrier, unsigned bytes) { filled[barrier].emplace_back(), told[barrier] = bytes; }
void box_load(SharedAddress to, const TensorMap &map, int row, int column, SharedAddress barrier) {
    filled[barrier].back().push_back({to, &map, row, column});
}
unsigned copied(const Box &box) {
    const TensorMap &m = *box.map;
    const int wide = m.box_columns * 4, flips = wide == 128 ? 7 : wide == 64 ? 3 : 0;
    demand(box.column % 4 == 0, "a column that the copy engine does not take");
    demand(box.to % (flips ? 128 * (flips + 1) : 128) == 0, "a box where the copy engine puts none, or where its swizzle begins elsewhere");
    for (int r = 0; r < m.box_rows; r++)
        for (int c = 0; c < m.box_columns; c++) {
            const int row = box.row + r, column = box.column + c;
            const bool inside = row >= 0 && row < m.rows && column >= 0 && column < m.columns;
            const float x = inside ? m.base[row * m.pitch + column] : 0;
            unsigned at = box.to + r * wide + c * 4;
            at ^= (at >> 7 & flips) << 4;
            demand(at + 4 <= SHARED, "copied out of shared memory"), std::memcpy(ring + at, &x, 4);
        }
    return m.box_rows * wide;
}
void barrier_wait(SharedAddress barrier, unsigned phase) {
    const unsigned turn = waits[barrier]++;
    demand(turn % 2 == phase && turn < filled[barrier].size(), "waits for what nobody fills");
    unsigned bytes = 0;
    for (const Box &box : filled[barrier][turn]) bytes += copied(box);
    demand(bytes == told[barrier], "the barrier gets other bytes than it was told");
}
void meet() { if (laying && met++ == pass) throw Stop(); }
void warp_barrier() {}
void block_barrier() { meet(); }
float load_float(SharedAddress at) {
    float x;
    demand(!laying || written[at], "read where nothing was laid"), std::memcpy(&x, (laying ? laid : ring) + at, 4);
    return x;
}
void load_floats(float *to, SharedAddress at) { for (int i = 0; i < 4; i++) to[i] = load_float(at + 4 * i); }
void store_shared_16(SharedAddress at, const Words4 &v) {
    laying = true;
    if (pass) return;
    for (int i = 0; i < 16; i++) demand(!written[at + i], "two sums in one place"), written[at + i] = true;
    std::memcpy(laid + at, &v, 16);
}
void store_shared(SharedAddress at, float x) {
    demand(aligning, "stored beside"), moved.emplace_back(at, x);
}
void publish_to_copies() {}
"""
ALL_ALIGN = r"""
template <class Tile, class Factor> void all_align(SharedAddress rows, const Factor &b) {
    const int mine = thread_now;
    aligning = true, moved.clear();
    for (thread_now = mine / 32 * 32; thread_now < mine / 32 * 32 + 32; thread_now++) align_rows<Tile>(rows, b);
    for (auto &word : moved) std::memcpy(ring + word.first, &word.second, 4);
    aligning = false, thread_now = mine;
}
"""
RINGS = "template <class Tile> __device__ __forceinline__ bool begin_rings"
MAIN = r"""
TensorMap map_of(const float *at, int rows, int columns, int pitch, int box_rows, int box_columns) {
    return {at, rows, columns, pitch, box_rows, box_columns};
}
void tell(TensorMap &map, const float *at, int rows, int columns, int box_rows, int box_columns) {
    map = map_of(at, rows, columns, columns, box_rows, box_columns);
}
template <int C> void tell(ResidueMaps<C> &of, const float *at, int rows, int columns, int box_rows, int box_columns) {
    for (int c = 0; c < C; c++) {
        const float *begin = at + c * columns;
        const int shift = c < rows ? reinterpret_cast<unsigned long long>(begin) % 16 / 4 : 1;
        of.map[c] = c < rows ? map_of(begin - shift, (rows - c + C - 1) / C, columns + shift, C * columns, box_rows / C, box_columns)
                             : map_of(at, 1, 1, C * columns, box_rows / C, box_columns);
        of.shift[c] = shift;
    }
}
struct Room {  // a matrix that begins `off` elements behind a multiple of 16 bytes, among NaN
    std::vector<float> all;
    float *at;
    Room(int count, int off) : all(count + 64, NAN) {
        at = all.data() + 16;
        while (reinterpret_cast<unsigned long long>(at) % 16) at++;
        at += off;
        for (int i = 0; i < count; i++) at[i] = (std::rand() % 17 - 8) / 4.0f;
    }
};
template <class T, class Factor> void multiplies(int m, int k, int n, int off) {
    Room a(m * k, off), b(k * n, off);
    std::vector<float> c(m * n, NAN);
    Factor of_a, of_b;
    tell(of_a, a.at, m, k, T::BM, T::LINE_A / 4), tell(of_b, b.at, k, n, T::BK, T::LINE_B / 4);
    const int tiles = (m + T::BM - 1) / T::BM * ((n + T::BN - 1) / T::BN);
    for (int tile = 0; tile < tiles; tile++) {
        std::memset(written, 0, sizeof written);
        for (pass = 0; pass < 2; pass++) {
            block_now = tile, filled.clear();
            for (thread_now = 0; thread_now < T::THREADS; thread_now++) {
                waits.clear(), laying = false, met = 0;
                try { ffma_matmul<T>(of_a, of_b, c.data(), m, k, n); } catch (Stop) {}
            }
        }
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float want = 0;  // exact: sums of few bits
            for (int l = 0; l < k; l++) want += a.at[i * k + l] * b.at[l * n + j];
            demand(c[i * n + j] == want, "another product");
        }
    thread_now = T::THREADS - 1;
    const T tile;
    std::printf("%u ", tile.full(T::STAGES));
}
int main() { PRODUCTS }
"""


# m, k, n, and how many elements A and B begin after a multiple of 16 bytes
SHAPES, EVEN_SHAPES = ((3, 2, 67, 2), (33, 150, 61, 1)), ((36, 152, 60, 0),)
LONG = {0: (64, 800, 32, 0), 4: (66, 530, 21, 3)}  # more steps of a warp than it has stages


def taken(file: str, begins: str) -> str:
    part = re.search(rf"^{begins}.*?^}};?\n", (FOLDER / file).read_text(), re.MULTILINE | re.DOTALL)
    assert part, f"{file} has {begins}"
    return part[0]


def common_text() -> str:
    """What a tile's text stands on."""
    rows = (FOLDER / "matmul/common/residue_maps.cuh").read_text()
    parts = (
        ("matmul/kernels/wgmma.cuh", "template <int STAGES> struct PipelineState "),
        ("matmul/common/cluster_reduce.cuh", "struct Steps "),
        ("matmul/kernels/tile.cuh", "struct TilePosition "),
        ("matmul/kernels/tile.cuh", r"template <int BM, int BN, unsigned GROUP = 16>\n[^\n]*tile_position"),
    )
    return "".join(taken(*part) for part in parts) + rows[rows.index("// A box of each class") :]


@needs_compiler
def test_every_tile_multiplies_what_lies_anywhere(tmp_path: Path) -> None:
    sources = [(FOLDER / "matmul" / "kernels" / f"ffma{part}.cuh").read_text() for part in ("_tile", "")]
    text = common_text() + (
        "".join(source[source.index("template <") :] for source in sources)
        .replace("align_rows<Tile>(", "all_align<Tile>(")
        .replace(RINGS, ALL_ALIGN + RINGS)
    )
    calls, configs = [], []
    for config in (config for config in CONFIGS if not config.stream_k):
        numbers = (config.rows, config.columns, config.warps, CLASSES if config.residue else 1, *THREAD, config.stages)
        for m, k, n, off in (*(SHAPES if config.residue else EVEN_SHAPES), LONG[CLASSES if config.residue else 0]):
            factor = f"ResidueMaps<{CLASSES}>" if config.residue else "TensorMap"
            calls.append(f"multiplies<FfmaTile<{', '.join(map(str, numbers))}>, {factor}>({m}, {k}, {n}, {off});")
            configs.append(config)
    said = said_by(BEFORE + text + MAIN.replace("PRODUCTS", "\n".join(calls)), tmp_path)
    for config, used in zip(configs, said.split(), strict=True):
        assert int(used) == config.shared_bytes("float32"), f"{config.name}: what a launch asks for, to the last barrier"
