"""What a producer tells its barrier to wait for is what the plan's boxes have, of an A that is lower than the tile as well.

With fewer bytes a barrier opens before all have come, with more never. The bytes are the source's own, by a C++ compiler; the boxes the
plan's.
"""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

import pytest
from clusters_on_cpu import needs_compiler, said_by

from opwise.backends.cuda_src import matmul_few, matmul_kernel, matmul_plan, matmul_wgmma
from opwise.backends.cuda_src.sources import FOLDER

SHARED = tuple(kernel for kernel in matmul_wgmma.TILES if kernel.cut)
TURNED = (*matmul_wgmma.TURNED, *matmul_wgmma.TURNED_BETWEEN)
OF_FEW = tuple(tile for tile in matmul_few.TILES["float16"] if tile.turned)
HEIGHTS = (1, 5, 16, 17, 40, 64, 100, 130, 150, 500)  # of A
MAIN = """
int main() { for (long long m : {HEIGHTS}) std::printf("%d\\n", TILE::STAGE_BYTES - missing_bytes<TILE>(m)); }
"""


def told(tile: str, heights: tuple[int, ...], folder: Path) -> list[int]:
    """Bytes of a step, of an A of each of these heights."""
    source = "".join((FOLDER / name).read_text() for name in ("matmul_split.cuh", "matmul_turned.cuh"))
    parts = [re.search(rf"^template <[^;]*?{part}.*?^}};?\n", source, re.MULTILINE | re.DOTALL)
             for part in ("struct SplitTile ", "struct TurnedTile ", r"int missing_bytes\(")]  # fmt: skip
    text = "SharedAddress shared_base() { return 0; }\n" + "".join(part[0] for part in parts if part) + f"using Tile_ = {tile};\n"
    main = MAIN.replace("TILE", "Tile_").replace("HEIGHTS", ", ".join(map(str, heights)))
    return [int(line) for line in said_by(text + main, folder).split()]


@needs_compiler
@pytest.mark.parametrize("kernel", SHARED + TURNED, ids=lambda kernel: str(kernel.name))
def test_a_barrier_waits_for_what_the_boxes_have(kernel: matmul_kernel.Kernel, tmp_path: Path) -> None:
    deep = kernel.step_bytes // 2
    if kernel.turned:
        tile = f"TurnedTile<float, {kernel.rows}, {kernel.columns}, {kernel.stages}>"
    else:
        tile = f"SplitTile<float, {kernel.rows}, {kernel.columns}, {deep}, {kernel.stages}, {kernel.split}, {kernel.resident}, 16>"
    boxes = []
    for m in HEIGHTS:
        a, b = matmul_plan.launch(kernel, "float16", m, 1024, 1024, 132).matrices[:2]
        boxes.append(2 * (prod(a[2:4]) * deep // a.box_columns + prod(b[2:4]) * -(-kernel.columns // b.box_columns)))
    assert told(tile, HEIGHTS, tmp_path) == boxes


@needs_compiler
@pytest.mark.parametrize("tile", OF_FEW, ids=lambda tile: str(tile.name))
def test_so_it_does_where_sixteen_rows_are_the_columns(tile: matmul_few.Tile, tmp_path: Path) -> None:
    heights = tuple(m for m in HEIGHTS if m <= matmul_few.ROWS)
    boxes = []
    for m in heights:
        a, b, *_ = tile.launch(m, 1024, 1024, 132).matrices
        boxes.append(2 * (prod(a[2:4]) + prod(b[2:4]) * tile.columns // b.box_columns))
    assert told(f"TurnedTile<float, {matmul_few.ROWS}, {tile.columns}, {tile.stages}>", heights, tmp_path) == boxes
