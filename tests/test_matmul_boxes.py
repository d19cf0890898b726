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

from opwise.backends.cuda_src.matmul.kernels.wgmma import CONFIGS, SplitK, SwapAB
from opwise.backends.cuda_src.sources import FOLDER
from opwise.backends.gemm.cost import Product
from opwise.backends.gemm.gpu import HOPPER

OWN = [config for config in CONFIGS if isinstance(config, SplitK | SwapAB)]
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
@pytest.mark.parametrize("config", OWN, ids=lambda config: str(config.name))
def test_a_barrier_waits_for_what_the_boxes_have(config: SplitK | SwapAB, tmp_path: Path) -> None:
    depth, tile = 64, f"SwapTile<float, {config.rows}, {config.columns}, {config.stages}>"
    if isinstance(config, SplitK):
        numbers = (config.rows, config.columns, config.depth, config.stages, config.split, config.ctas_per_sm, 16)
        depth, tile = config.depth, f"SplitKTile<float, {', '.join(map(str, numbers))}>"
    boxes = []
    for m in HEIGHTS:
        a, b = config.launch(Product(m, 1024, 1024, "float16"), HOPPER).matrices[:2]
        boxes_of_b = depth // b.box_columns if config.layout == "NT" else -(-config.columns // b.box_columns)
        boxes.append(2 * (prod(a[2:4]) * depth // a.box_columns + prod(b[2:4]) * boxes_of_b))
    assert told(tile, HEIGHTS, tmp_path) == boxes
    if isinstance(config, SwapAB):
        c = config.launch(Product(1000, 1024, 1024, "float16"), HOPPER).matrices[2]
        assert (c.box_rows, c.box_columns) == (config.rows, 64), "a consumer stores its 64 columns of the whole tile by one box"
