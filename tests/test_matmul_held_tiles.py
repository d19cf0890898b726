"""16-bit products with a B that a block holds: matmul_held.cuh, all blocks and threads at once, on the CPU.

No stand-in has the copy engine and its barriers. So the source's own text is compiled here with functions in the place of its instructions,
every thread of every block a fibre. A copy lands some turns later, in any order; a barrier counts arrivals and bytes, and who waits sees no
more of it than the parity of its phase, so that a slot overwritten too early, or a round taken for another, shows. Elements are small
integers, and memory that nobody wrote is not a number. What the instructions themselves do, and what is seen when, only a GPU shows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from blocks_on_cpu import FIBRES, RUN
from clusters_on_cpu import needs_compiler, said_by
from test_matmul_rows import taken

from opwise.backends.cuda_src.matmul_held import DEPTH, LEAST_RING, QUICKEST, SHARED, Tile
from opwise.backends.cuda_src.plan import Plan
from opwise.backends.cuda_src.sources import FOLDER

BEFORE = r"""
using Element = short;
constexpr short NOTHING = short(0x8080);
struct TensorMap { const Element *base; int rows, columns, box_rows; };
struct Copy { int block; SharedAddress to, barrier; std::vector<char> bytes; int turns; };
int some_turns() { return std::rand() % 32 ? std::rand() % 4 : 3000; }  // one of many is later than a whole ring
struct Barrier { int arrivals, left, bytes; unsigned phase; };  // phases that are over
std::vector<Copy> under_way;
std::map<std::pair<int, SharedAddress>, Barrier> barriers;
Barrier &barrier(SharedAddress at) {
    demand(at % 8 == 0 && barriers.count({now->block, at}), "no barrier there");
    return barriers[{now->block, at}];
}
void look(Barrier &of) { if (of.left == 0 && of.bytes == 0) of.left = of.arrivals, of.phase++; }
void barrier_init(SharedAddress at, int arrivals) {
    memory(at, 8);
    const bool fresh = barriers.emplace(std::make_pair(now->block, at), Barrier{arrivals, arrivals, 0, 0}).second;
    demand(fresh, "two barriers in one place");
}
void barrier_wait(SharedAddress at, unsigned parity) { while (barrier(at).phase % 2 == parity) others_go(); }
void barrier_arrive(SharedAddress at) { demand(barrier(at).left-- > 0, "more arrivals than it counts"), look(barrier(at)); }
void barrier_expect(SharedAddress at, unsigned bytes) { barrier(at).bytes += bytes, barrier_arrive(at); }
void threads_barrier(int id, int threads) { pass(blocks_now[now->block].named[id], threads); }
void stretch_load(SharedAddress to, const Element *from, unsigned bytes, SharedAddress barrier) {
    demand(to % 16 == 0 && (unsigned long long)from % 16 == 0 && bytes % 16 == 0, "a stretch that the copy engine does not take");
    under_way.push_back({now->block, to, barrier, {(const char *)from, (const char *)from + bytes}, some_turns()});
}
void box_load(SharedAddress to, const TensorMap &m, int first_row, int first_column, SharedAddress barrier) {
    demand(to % 1024 == 0, "a box whose swizzle begins elsewhere");
    std::vector<char> box(m.box_rows * 128);
    for (int r = 0; r < m.box_rows; r++)
        for (int c = 0; c < 64; c++) {
            const int row = first_row + r, column = first_column + c, at = r * 128 + c * 2;
            const Element x = row < m.rows && column < m.columns ? m.base[row * m.columns + column] : 0;
            std::memcpy(&box[at ^ (at >> 7 & 7) << 4], &x, 2);
        }
    under_way.push_back({now->block, to, barrier, box, some_turns()});
}
void after_turn() {
    std::vector<Copy> left;
    for (auto &copy : under_way) {
        if (copy.turns-- > 0) { left.push_back(copy); continue; }
        demand(copy.to + copy.bytes.size() <= blocks_now[copy.block].memory.size(), "copied out of shared memory");
        std::memcpy(blocks_now[copy.block].memory.data() + copy.to, copy.bytes.data(), copy.bytes.size());
        Barrier &of = barriers.at({copy.block, copy.barrier});
        of.bytes -= copy.bytes.size(), demand(of.bytes >= 0, "more bytes than the barrier was told"), look(of);
    }
    under_way = left;
}
float load_shared_float(SharedAddress at) { return loaded<float>(at); }
Words4 load_shared_16(SharedAddress at) { return loaded<Words4>(at); }
float as_float(unsigned bits) { float x; std::memcpy(&x, &bits, 4); return x; }
unsigned pack_pair(float low, float high, Element) { return (unsigned short)low | unsigned((unsigned short)high) << 16; }

struct Warp { SharedAddress rows[32]; unsigned a[32][4], b[32][2]; };  // what its lanes brought
std::map<int, Warp> warps;
Warp &warp() { return warps[now->block * 32 + warp_index()]; }
Element element(unsigned pair, int odd) { return Element(pair >> 16 * odd); }
void load_matrices(unsigned (&f)[4], SharedAddress row, bool transposed = false) {
    const int lane = thread_index() % 32;
    warp().rows[lane] = row, warp_barrier();
    for (int i = 0; i < 4; i++) {
        Element pair[2];
        for (int odd = 0; odd < 2; odd++) {
            const int y = transposed ? 2 * (lane % 4) + odd : lane / 4, x = transposed ? lane / 4 : 2 * (lane % 4) + odd;
            demand(warp().rows[8 * i + y] % 16 == 0, "a row that ldmatrix does not take");
            pair[odd] = loaded<Element>(warp().rows[8 * i + y] + 2 * x);
        }
        std::memcpy(&f[i], pair, 4);
    }
    warp_barrier();
}
void load_matrices_transposed(unsigned (&f)[4], SharedAddress row) { load_matrices(f, row, true); }
void tensor_product(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], Element) {
    const int lane = thread_index() % 32;
    std::copy(a, a + 4, warp().a[lane]), std::copy(b, b + 2, warp().b[lane]), warp_barrier();
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++) {
            const Element x = element(warp().a[lane / 4 * 4 + k % 8 / 2][k / 8 * 2 + i / 2], k % 2);
            const Element y = element(warp().b[(lane % 4 * 2 + i % 2) * 4 + k % 8 / 2][k / 8], k % 2);
            c[i] += x == NOTHING || y == NOTHING ? NAN : float(x * y);
        }
    warp_barrier();
}
"""
MULTIPLIES = r"""
const Element *of_b;
Element *result;
TensorMap of_a;
long long numbers[6];
template <int COLUMNS> void call() {
    const auto [m, k, stages, sharing, sixteens, tiles] = numbers;
    held_matmul(HeldTile<Element, COLUMNS>(k, stages, sharing, sixteens, tiles), of_a, of_b, result, m);
}
template <int COLUMNS> void multiplies(int m, int k, int stages, int sharing, int sixteens, int tiles, int grid, int threads, int shared) {
    std::vector<Element> a(m * k + 8), b(k * COLUMNS + 8), c(m * COLUMNS + 8, NOTHING);
    for (auto &x : a) x = std::rand() % 7 - 3;
    for (auto &x : b) x = std::rand() % 7 - 3;
    demand((unsigned long long)b.data() % 16 == 0 && (unsigned long long)c.data() % 16 == 0, "a vector that does not begin on 16 bytes");
    long long now[] = {m, k, stages, sharing, sixteens, tiles};
    std::copy(now, now + 6, numbers), of_a = {a.data(), m, k, 16 * sixteens}, of_b = b.data(), result = c.data();
    barriers.clear(), warps.clear();
    run(grid, threads, shared, char(0x80), call<COLUMNS>);
    demand(under_way.empty(), "a copy that nobody waits for");
    for (int i = 0; i < m; i++)
        for (int j = 0; j < COLUMNS; j++) {
            int want = 0;
            for (int l = 0; l < k; l++) want += a[i * k + l] * b[l * COLUMNS + j];
            demand(c[i * COLUMNS + j] == want, "another product");
        }
    for (int i = m * COLUMNS; i < m * COLUMNS + 8; i++) demand(c[i] == NOTHING, "stored behind C");
}
int main() {
    for (int seed = 0; seed < SEEDS; seed++) { std::srand(seed); PRODUCTS }
}
"""
# Rows, K, multiprocessors: a warp a tile; warps that share K, in a ring that is whole and in one that goes round (K: the longest that fits,
# up to 2200); tiles by turns, K within a step, and of more steps than a ring has slots.
LONGEST = 2200
CASES = ((9, 24, 1), (33, 400, 2), (23, LONGEST, 2), (301, 72, 1), (600, 40, 2), (270, 640, 1))


def launches(columns: int) -> list[tuple[int, int, Plan]]:
    longest, tile = (SHARED - LEAST_RING - 1024) // (2 * columns * DEPTH) * DEPTH, Tile("float16", columns)
    return [(m, min(k, longest), tile.launch(m, min(k, longest), columns, sm_count)) for m, k, sm_count in CASES]


def text() -> str:
    pieces = (
        taken("matmul_whole.cuh", "__device__ __forceinline__ unsigned spread"),
        taken("matmul_tile.cuh", "template <int ROW_BYTES> struct ByRow "),
    )
    source = (FOLDER / "matmul_held.cuh").read_text()
    return "".join(pieces) + source[source.index("template <class Storage_, int COLUMNS_>") :]


def program(source: str, launched: dict[int, list[tuple[int, int, Plan]]], seeds: int) -> str:
    calls = [
        f"multiplies<{n}>({m}, {k}, {', '.join(map(str, plan.shares))}, {plan.grid[0]}, {plan.block[0]}, {plan.shared_bytes});"
        for n, plans in launched.items()
        for m, k, plan in plans
    ]
    return f"{FIBRES}{RUN}{BEFORE}{source}" + MULTIPLIES.replace("PRODUCTS", "\n".join(calls)).replace("SEEDS", str(seeds))


@needs_compiler
def test_products_are_right_however_late_a_copy_lands(tmp_path: Path) -> None:
    said_by(program(text(), {n: launches(n) for n in QUICKEST}, seeds=2), tmp_path)


def test_the_cases_are_of_every_kind() -> None:
    for columns in QUICKEST:
        plans = [(-(-k // DEPTH), plan.grid[0], *plan.shares) for _, k, plan in launches(columns)]
        assert any(sharing > 1 and stages == steps for steps, _, stages, sharing, _, _ in plans), "shared K, each slot filled once"
        assert any(sharing > 1 and stages < steps for steps, _, stages, sharing, _, _ in plans), "and in rounds"
        assert any(tiles > grid and stages < steps * tiles for steps, grid, stages, _, _, tiles in plans), "tiles by turns, in rounds"
        assert any(sixteens > 1 for *_, sixteens, _ in plans)


@needs_compiler
@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("barrier_wait(tile.empty(slot), round ^ 1);", ""),
        ("barrier_wait(tile.full(slot), round);", ""),
        ("fill_up(tile);", ""),
        ("    threads_barrier(1, 32 * tile.warps());  // the ring is read\n", ""),
        ("    threads_barrier(1, 32 * tile.warps());\n    if (share > 0) return false;", "    if (share > 0) return false;"),
        ("piece < rows_left * Tile::EIGHTS", "true"),
        ("if (++at == tile.steps) at = 0;", ""),
    ],
    ids=[
        "fills what is read",
        "reads what is not there",
        "B's tail",
        "lays where others read",
        "adds what is not there",
        "rows behind C",
        "K",
    ],
)
def test_the_program_finds_a_fault(tmp_path: Path, was: str, becomes: str) -> None:
    source = text()
    assert source.count(was) == 1
    with pytest.raises(AssertionError):
        said_by(program(source.replace(was, becomes), {24: launches(24)}, seeds=4), tmp_path)


@needs_compiler
def test_the_program_finds_a_ring_whose_slots_change_warps(tmp_path: Path) -> None:
    """A slot's second round is then another warp's, which may take it for there when the first is not."""
    of_rounds = [(m, k, plan) for m, k, plan in launches(24) if plan.shares[1] > 1 and plan.shares[0] < -(-k // DEPTH)]
    shorter = [(m, k, replace(plan, shares=(plan.shares[0] - 1, *plan.shares[1:]))) for m, k, plan in of_rounds]
    with pytest.raises(AssertionError):
        said_by(program(text(), {24: shorter}, seeds=20), tmp_path)
