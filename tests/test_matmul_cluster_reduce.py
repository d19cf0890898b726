"""Where a cluster's sums meet (cluster_reduce.cuh): every block's share of a tile, of every thread, on the CPU.

No stand-in has clusters, so the source's own struct is compiled here with functions in the place of its instructions: all blocks lay,
then all store. Every element inside is stored once, as the blocks' parts added in the order of their ranks, and nothing outside.
"""

from __future__ import annotations

import re
from pathlib import Path

from clusters_on_cpu import needs_compiler, said_by

from opwise.backends.cuda_src.matmul.kernels.cluster import CONFIGS
from opwise.backends.cuda_src.sources import FOLDER

BEFORE = r"""
constexpr unsigned ROOM = 4096;
int barriers, stores;
std::map<unsigned, float> memory;  // rank << 24 | address -> what was laid
unsigned rank_in_cluster() { return rank_now; }
void cluster_arrive_written() { demand(barriers++ % 4 == 0, "says twice that it has written"); }
void cluster_arrive() { demand(barriers++ % 4 == 2, "leaves before it has waited"); }
void cluster_wait() { demand(barriers++ % 2 == 1, "waits without having arrived"); }
void from_float(float x, float &y) { y = x, stores++; }
void store_shared(SharedAddress at, float x) {
    demand(memory.emplace(rank_now << 24 | at, x).second, "two elements in one place");
}
float load_from_block(SharedAddress there, bool used) {
    if (!used) return 0;
    demand(memory.count(there), "read where nothing was laid");
    return memory[there];
}
"""
MAIN = r"""
template <class M> void reduces(int rows, int columns) {
    memory.clear();
    const M reduce(ROOM);
    const int pitch = M::BN + 5;
    std::vector<float> c(M::BM * pitch, -1.0f);
    stores = 0;
    for (rank_now = 0; rank_now < M::S; rank_now++)
        for (int i = 0; i < M::BM * M::BN; i++) reduce.write_partial(i / M::BN, i % M::BN, part_of(rank_now, i / M::BN, i % M::BN));
    for (auto &laid : memory) demand((laid.first & 0xffffff) >= ROOM && (laid.first & 0xffffff) < ROOM + M::BYTES, "laid outside its room");
    for (rank_now = 0; rank_now < M::S; rank_now++)
        for (thread_now = 0; thread_now < M::THREADS; thread_now++) reduce.store(c.data(), (long long)pitch, rows, columns);
    demand(stores == rows * columns, "not every element is stored once");
    for (int y = 0; y < M::BM; y++)
        for (int x = 0; x < pitch; x++) {
            float want = part_of(0, y, x);
            for (int rank = 1; rank < M::S; rank++) want += part_of(rank, y, x);
            demand(c[y * pitch + x] == (y < rows && x < columns ? want : -1.0f), "another sum, or stored outside");
        }
}
template <class M> void reduces() { reduces<M>(M::BM, M::BN), reduces<M>(1, M::BN - 3), reduces<M>(M::BM - 1, 1); }
int main() { REDUCTIONS }
"""


@needs_compiler
def test_every_element_is_stored_once_by_the_parts_in_order(tmp_path: Path) -> None:
    source = (FOLDER / "matmul/common/cluster_reduce.cuh").read_text()
    part = re.search(r"^template <[^\n]*struct ClusterReduce \{.*?^};\n", source, re.MULTILINE | re.DOTALL)
    assert part
    shared = {(c.split, c.tile.rows, c.tile.columns, c.tile.threads) for c in CONFIGS if c.split > 1} | {(8, 64, 128, 256)}
    calls = " ".join(f"reduces<ClusterReduce<{', '.join(map(str, numbers))}>>();" for numbers in sorted(shared))
    said_by(BEFORE + part[0] + MAIN.replace("REDUCTIONS", calls), tmp_path)
