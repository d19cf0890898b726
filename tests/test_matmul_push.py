"""Where a tile's K is shared: how the blocks' sums meet, of every thread of every block of a cluster, on the CPU.

No stand-in has clusters, so the source's own text is compiled here with functions in the place of its instructions: first all blocks push,
then all add. An inbox is written once, what is read has been written, each barrier gets the bytes it was told, C's elements are each
stored once, by the sums in the source's order. What the instructions themselves do only a GPU shows.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from clusters_on_cpu import needs_compiler, said_by

from opwise.backends.cuda_src.matmul.kernels.wgmma import CONFIGS, SplitK
from opwise.backends.cuda_src.sources import FOLDER

TILES = [config for config in CONFIGS if isinstance(config, SplitK) and config.split > 1 and config.layout == "NN"]
BEFORE = r"""
constexpr int SHARED = 232448, BASE = 16;  // of a block; addresses begin at no multiple of 1024
struct Waiting {};
bool adding;
unsigned waited_at;
char memory[16][SHARED];
bool written[16][SHARED];
std::map<std::pair<int, unsigned>, int> arrived;  // block and barrier -> bytes
std::vector<float> c;
std::vector<int> stores;
int pitch;
unsigned warp_index() { return thread_now / 32; }
SharedAddress shared_base() { return BASE; }
void push_16(SharedAddress there, const float *from, SharedAddress barrier) {
    if (adding) return;
    const int rank = there >> 24, at = there & 0xffffff;
    demand(rank != rank_now && rank == int(barrier >> 24), "pushed to itself, or counted elsewhere");
    demand(at % 16 == 0 && at + 16 <= SHARED, "pushed out of bounds");
    for (int i = 0; i < 16; i++) demand(!written[rank][at + i], "pushed twice"), written[rank][at + i] = true;
    std::memcpy(memory[rank] + at, from, 16), arrived[{rank, barrier & 0xffffff}] += 16;
}
void barrier_wait_cluster(SharedAddress barrier, unsigned) { if (waited_at = barrier; !adding) throw Waiting(); }
void load_shared_16(float *to, SharedAddress from) {
    for (int i = 0; i < 16; i++) demand(written[rank_now][from + i], "read before it was pushed");
    std::memcpy(to, memory[rank_now] + from, 16);
}
template <class Visit> void of_unit(int row, int column, Visit visit) {  // visit(register, row, column), as wgmma leaves its sums
    for (int i = 0; i < 8; i++) visit(i, row + thread_now % 32 / 4 + i / 2 % 2 * 8, column + i / 4 * 8 + thread_now % 4 * 2 + i % 2);
}
void store_unit(float *, long long, long long, int row, int column, const float *sums) {
    of_unit(row, column, [&](int i, int y, int x) { c[y * pitch + x] = sums[i], stores[y * pitch + x]++; });
}
"""
MAIN = r"""
int main() {
    using T = TILE;
    const T tile;
    c.assign(T::BM * T::BN, 0), stores.assign(T::BM * T::BN, 0), pitch = T::BN;
    for (int pass = 0; pass < 2; pass++)
        for (rank_now = 0, adding = pass; rank_now < T::S; rank_now++)
            for (thread_now = 0; thread_now < 32 * T::WARPS; thread_now++) {
                float sums[T::BN / 2];
                const int warp = thread_now / 32;
                for (int unit = 0; unit < T::UNITS_A_ROW; unit++)
                    of_unit(16 * warp, 16 * unit, [&](int i, int y, int x) { sums[8 * unit + i] = part_of(rank_now, y, x); });
                try { push_and_store<T>(tile, static_cast<float *>(nullptr), 0, 0, 0, 0, rank_now, sums); } catch (Waiting) {}
                demand(waited_at == tile.arrived(warp), "waits at another's barrier");
            }
    for (int rank = 0; rank < T::S; rank++) {
        for (int warp = 0; warp < T::WARPS; warp++) {
            int owned = 0;
            for (int i = 0; i < T::UNITS_A_ROW; i++) owned += T::owner(warp, i) == rank;
            demand(arrived[{rank, tile.arrived(warp)}] == (T::S - 1) * owned * 1024, "a barrier gets other bytes than it waits for");
        }
        for (unsigned at = 0; at < SHARED; at++)
            demand(!written[rank][at] || (at >= tile.slot(T::STAGES) && at < tile.full(0)), "pushed beside the inbox");
    }
    for (int y = 0; y < T::BM; y++)
        for (int x = 0; x < T::BN; x++) {
            const int owner = T::owner(y / 16, x / 16);
            float want = part_of(owner, y, x);
            for (int further = 1; further < T::S; further++) want += part_of((owner + further) % T::S, y, x);
            demand(stores[y * T::BN + x] == 1 && c[y * T::BN + x] == want, "an element is not stored once, or another sum");
        }
    std::printf("%u\n", tile.arrived(T::WARPS));
}
"""


@needs_compiler
@pytest.mark.parametrize("config", TILES, ids=lambda config: str(config.name))
def test_pushed_sums_meet_where_they_are_added(config: SplitK, tmp_path: Path) -> None:
    source = (FOLDER / "matmul/kernels/split_k.cuh").read_text()
    parts = [re.search(rf"^template <[^\n]*(?=\n__device|\nstruct){between}.*?^}};?\n", source, re.MULTILINE | re.DOTALL)
             for between in (r"\nstruct SplitKTile ", r"\n[^\n]*push_and_store\(")]  # fmt: skip
    text = "".join(part[0] for part in parts if part)
    numbers = (config.rows, config.columns, config.depth, config.stages, config.split, config.ctas_per_sm, 16)
    main = MAIN.replace("TILE", f"SplitKTile<float, {', '.join(map(str, numbers))}>")
    said = said_by(BEFORE + text + main, tmp_path)
    assert int(said) <= 16 + config.shared_bytes("float16"), "what a launch asks for holds the barriers too"
