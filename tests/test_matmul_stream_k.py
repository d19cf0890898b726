"""float32 products whose K the whole grid shares: ffma_stream_k.cuh, all blocks and threads at once, on the CPU.

No stand-in has the copy engine. So the source's own text is compiled here with functions in the place of its instructions, and every thread
of every block is a fibre, which others overtake at barriers and while it looks at a flag. A box is copied when it is asked for. What the
instructions themselves do, and what is seen when, only a GPU shows.
"""

from __future__ import annotations

from pathlib import Path

from blocks_on_cpu import FIBRES, RUN
from clusters_on_cpu import needs_compiler, said_by
from test_matmul_ffma import MAIN, common_text

from opwise.backends.cuda_src.matmul.kernels.ffma import CONFIGS, DEPTH, THREAD, Ffma
from opwise.backends.cuda_src.sources import FOLDER
from opwise.backends.gemm.cost import Product
from opwise.backends.gemm.gpu import HOPPER

SHARED = [config for config in CONFIGS if config.stream_k]
BEFORE = r"""
float fused(float a, float b, float c) { return a * b + c; }
Words4 apart(const float *x, unsigned) { Words4 all; std::memcpy(&all, x, 16); return all; }
struct Barrier { unsigned filled, waited; };
void barrier_init(SharedAddress at, int) { std::memset(memory(at, 8), 0, 8); }
Barrier barrier(SharedAddress at) { Barrier found; std::memcpy(&found, memory(at, 8), 8); return found; }
void publish_to_copies() {}
struct TensorMap { const float *base; int rows, columns, pitch, box_rows, box_columns; };
template <int CLASSES> struct ResidueMaps { TensorMap map[CLASSES]; int shift[16]; };
void barrier_expect(SharedAddress at, unsigned) {
    Barrier of = barrier(at);
    demand(of.filled == of.waited, "filled before it was left"), of.filled++, std::memcpy(memory(at, 8), &of, 8);
}
void barrier_wait(SharedAddress at, unsigned phase) {  // by a whole warp, whose words have been copied then
    warp_barrier();
    Barrier of = barrier(at);
    demand(of.filled == of.waited + 1 && of.waited % 2 == phase, "waits for what nobody fills");
    warp_barrier();
    of.waited++;
    if (elected()) std::memcpy(memory(at, 8), &of, 8);
    warp_barrier();
}
void box_load(SharedAddress to, const TensorMap &m, int first_row, int first_column, SharedAddress) {
    const int wide = m.box_columns * 4, flips = wide == 128 ? 7 : wide == 64 ? 3 : 0;
    for (int r = 0; r < m.box_rows; r++)
        for (int c = 0; c < m.box_columns; c++) {
            const int row = first_row + r, column = first_column + c;
            const float x = row < m.rows && column < m.columns ? m.base[row * m.pitch + column] : 0;
            const unsigned at = to + r * wide + c * 4;
            std::memcpy(memory(at ^ (at >> 7 & flips) << 4, 4), &x, 4);
        }
}
float load_float(SharedAddress at) { return loaded<float>(at); }
void load_floats(float *to, SharedAddress at) { for (int i = 0; i < 4; i++) to[i] = load_float(at + 4 * i); }
unsigned seen(const unsigned *flag) { others_go(); return *flag; }
void raise(unsigned *flag) { demand(*flag == 0, "raised before it was seen"), *flag = 1; }
void clear(unsigned *flag) { *flag = 0; }
float load_left(const float *from) { demand(!std::isnan(*from), "read where no block has written"); return *from; }
"""
MULTIPLIES = r"""
void after_turn() {}
const void *of_a, *of_b;
float *result;
unsigned *flags_now;
long long sizes[3];
template <class T, class Factor> void call() {
    const auto &a = *static_cast<const Factor *>(of_a), &b = *static_cast<const Factor *>(of_b);
    ffma_stream_k_matmul<T>(a, b, result, sizes[0], sizes[1], sizes[2], flags_now);
}
template <class T, class Factor> void multiplies(int m, int k, int n, int off, int grid) {
    Room a(m * k, off), b(k * n, off);
    Factor maps_of_a, maps_of_b;
    tell(maps_of_a, a.at, m, k, T::BM, T::LINE_A / 4), tell(maps_of_b, b.at, k, n, T::BK, T::LINE_B / 4);
    std::vector<unsigned> flags(grid);
    sizes[0] = m, sizes[1] = k, sizes[2] = n, flags_now = flags.data();
    of_a = &maps_of_a, of_b = &maps_of_b;
    for (int again = 0; again < 2; again++) {
        std::vector<float> c(m * n, NAN);
        result = c.data(), run(grid, T::THREADS, SHARED, char(0xff), call<T, Factor>);
        for (unsigned flag : flags) demand(flag == 0, "a flag is left");
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) {
                float want = 0;  // exact: sums of few bits
                for (int l = 0; l < k; l++) want += a.at[i * k + l] * b.at[l * n + j];
                demand(c[i * n + j] == want, "another product");
            }
    }
}
int main() { PRODUCTS }
"""


def grids(config: Ffma) -> tuple[tuple[int, int, int, int, int], ...]:
    """m, k, n, how far A and B begin behind a multiple of 16 bytes, blocks: 2 x 2 tiles that stick out, or one.

    More tiles than blocks, blocks within a tile, a share that ends with a tile.
    """
    m, n, rounds = config.rows + 4, config.columns + 4, DEPTH * config.warps
    return (m, 3 * rounds - 4, n, 0, 3), (m, 3 * rounds + 8, n, 0, 9), (20, 2 * rounds, 20, 0, 2)


@needs_compiler
def test_blocks_that_share_all_tiles_multiply_what_lies_anywhere(tmp_path: Path) -> None:
    names = "matmul/kernels/ffma_tile", "matmul/kernels/ffma", "matmul/kernels/ffma_stream_k"
    tile_source, rows, shares = ((FOLDER / f"{name}.cuh").read_text() for name in names)
    end = "template <class Tile, class FactorA, class FactorB>\n__device__ __forceinline__ void ffma_matmul"
    text = common_text() + tile_source[tile_source.index("template <") :]
    text += rows[rows.index("// The ring of each") : rows.index(end)] + shares[shares.index("// The tile's sums, which") :]
    calls = []
    for config in SHARED:
        numbers = (config.rows, config.columns, config.warps, 1, *THREAD, config.stages)
        made = f"FfmaTile<{', '.join(map(str, numbers))}>, TensorMap"
        calls += [f"multiplies<{made}>({', '.join(map(str, case))});" for case in grids(config)]
    main = MAIN[: MAIN.index("template <class T, class Factor> void multiplies")]
    said_by(f"{FIBRES}{RUN}{BEFORE}{text}{main}" + MULTIPLIES.replace("PRODUCTS", "\n".join(calls)), tmp_path)


def test_a_launch_has_a_flag_for_each_block_and_no_more_blocks_than_run_at_once() -> None:
    for config in SHARED:
        for shape in ((3001, 4504, 464), (385, 4504, 464), (20, 700, 20), (1000, 1000, 1000)):
            product = Product(*shape, "float32")
            plan = config.launch(product, HOPPER)
            assert plan.cooperative
            most = min(132 * config.ctas_per_sm, config.tiles(product) * config.rounds(product))
            assert plan.grid[0] <= most, "all run at once, each has a round or more"
            assert 4 * plan.grid[0] <= plan.scratch_bytes == plan.zeroed_bytes <= 64 * 1024
