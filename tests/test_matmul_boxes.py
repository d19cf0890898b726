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

from opwise.backends.cuda_src.matmul import launch
from opwise.backends.cuda_src.matmul.configuration import Kernel
from opwise.backends.cuda_src.matmul.kernels import swap_ab, wgmma
from opwise.backends.cuda_src.sources import FOLDER

SHARED = tuple(kernel for kernel in wgmma.TILES if kernel.cut)
HEIGHTS = (1, 5, 16, 17, 40, 64, 100, 130, 150, 500)  # of A
MAIN = """
int main() { for (long long m : {HEIGHTS}) std::printf("%d\\n", TILE::STAGE_BYTES - missing_bytes<TILE>(m)); }
"""


def told(tile: str, heights: tuple[int, ...], folder: Path) -> list[int]:
    """Bytes of a step, of an A of each of these heights."""
    source = "".join((FOLDER / name).read_text() for name in ("matmul/kernels/split_k.cuh", "matmul/kernels/swap_ab.cuh"))
    parts = [re.search(rf"^template <[^;]*?{part}.*?^}};?\n", source, re.MULTILINE | re.DOTALL)
             for part in ("struct SplitKTile ", "struct SwapTile ", r"int missing_bytes\(")]  # fmt: skip
    text = "SharedAddress shared_base() { return 0; }\n" + "".join(part[0] for part in parts if part) + f"using Tile_ = {tile};\n"
    main = MAIN.replace("TILE", "Tile_").replace("HEIGHTS", ", ".join(map(str, heights)))
    return [int(line) for line in said_by(text + main, folder).split()]


@needs_compiler
@pytest.mark.parametrize("kernel", SHARED + wgmma.SWAP_AB, ids=lambda kernel: str(kernel.name))
def test_a_barrier_waits_for_what_the_boxes_have(kernel: Kernel, tmp_path: Path) -> None:
    deep = kernel.step_bytes // 2
    if kernel.swap_ab:
        tile = f"SwapTile<float, {kernel.rows}, {kernel.columns}, {kernel.stages}>"
    else:
        tile = f"SplitKTile<float, {kernel.rows}, {kernel.columns}, {deep}, {kernel.stages}, {kernel.split}, {kernel.resident}, 16>"
    boxes = []
    for m in HEIGHTS:
        a, b = launch(kernel, "float16", m, 1024, 1024, 132).matrices[:2]
        boxes.append(2 * (prod(a[2:4]) * deep // a.box_columns + prod(b[2:4]) * -(-kernel.columns // b.box_columns)))
    assert told(tile, HEIGHTS, tmp_path) == boxes


@needs_compiler
@pytest.mark.parametrize("tile", swap_ab.TILES["float16"], ids=lambda tile: str(tile.name))
def test_so_it_does_where_sixteen_rows_are_the_columns(tile: swap_ab.Tile, tmp_path: Path) -> None:
    heights = tuple(m for m in HEIGHTS if m <= swap_ab.ROWS)
    boxes = []
    for m in heights:
        a, b, *_ = tile.launch(m, 1024, 1024, 132).matrices
        boxes.append(2 * (prod(a[2:4]) + prod(b[2:4]) * tile.columns // b.box_columns))
    assert told(f"SwapTile<float, {swap_ab.ROWS}, {tile.columns}, {tile.stages}>", heights, tmp_path) == boxes
