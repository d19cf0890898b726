"""What the CUDA C++ backends launch for a row of any length fits the GPU and holds what it should hold; how short rows share a block."""

from __future__ import annotations

import re

import pytest

from opwise.backends import staged_rows
from opwise.backends.cuda_src import plan
from opwise.backends.cuda_src.softmax import choice
from opwise.backends.cuda_src.softmax import ladder as softmax_ladder
from opwise.backends.cuda_src.sources import FOLDER, STREAM, unit_of
from opwise.backends.protocol import UnsupportedWorkload

COLUMNS = (
    *(1, 8, 31, 64, 127, 257, 1000, 1024, 1032, 2048, 4096, 8192, 8200, 16384, 16392, 24576, 24584, 32768, 32771, 32776),
    *(65536, 131072, 262_144, 262_152, 300_008, 524_288, 524_296, 1_048_576, 1_048_584, 2_097_168, 4_194_304),
)
ROWS = (1, 8, 9, 256, 70_000)


@pytest.mark.parametrize("dtype", plan.ITEM_BYTES)
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0), (12, 0)])
def test_a_plan_fits_the_gpu_and_keeps_a_row_up_to_4_mib(dtype: str, capability: tuple[int, int]) -> None:
    for rows in ROWS:
        for columns in COLUMNS:
            found = choice.softmax(rows, columns, dtype, aligned=True, sm_count=132, capability=capability)
            kind = found.kernel.split("_")[2]
            digits = "".join(filter(str.isdigit, kind))
            assert found.grid[0] < 2**31
            threads = found.block[0] * found.block[1]
            assert threads % 32 == 0
            assert threads <= 1024
            if kind.startswith("warp"):
                assert found.block[0] * int(digits) >= columns
                assert found.block[0] in (1, 2, 4, 8, 16, 32)
                assert found.grid[0] * found.block[1] >= rows
            if kind.startswith("block"):
                assert found.block[0] * int(digits) >= columns
            if kind.startswith("cluster"):
                blocks, row_bytes = int(digits), columns * plan.ITEM_BYTES[dtype]
                assert blocks == 1 or capability in ((9, 0), (10, 0)), "elsewhere there are none, or of 8 blocks at most"
                assert row_bytes % 16 == 0
                assert found.grid[0] % blocks == 0
                assert found.grid[0] // blocks == rows
                held = blocks * (found.block[0] * choice.CLUSTER_PIECES * 16 + found.shared_bytes)
                assert held >= row_bytes or row_bytes > 4 << 20
                assert found.shared_bytes <= choice.MOST_DYNAMIC_SHARED
                assert found.shared_bytes * (1024 // found.block[0]) <= choice.MOST_DYNAMIC_SHARED, (
                    "less than 1024 threads a multiprocessor"
                )


@pytest.mark.parametrize("dtype", plan.ITEM_BYTES)
def test_a_stream_of_rows_runs_at_once_and_holds_what_it_takes(dtype: str) -> None:
    """A launch of more blocks than run at once is refused; a block that is given more than its places hold overwrites the next place."""
    taken = set()
    for sm_count in (132, 114, 7):
        for rows in ROWS:
            for columns in COLUMNS:
                found = choice.softmax(rows, columns, dtype, aligned=True, sm_count=sm_count, capability=(9, 0))
                if not found.kernel.endswith("_stream_v16"):
                    continue
                taken.add((sm_count, columns))
                pieces, (blocks, groups, _) = columns * plan.ITEM_BYTES[dtype] // plan.VECTOR_BYTES, found.grid
                assert blocks * groups <= sm_count
                assert groups <= rows
                part = -(-pieces // (blocks * choice.STREAM_WARPS * 8)) * 8  # as the kernel cuts a row
                assert part <= 32 * choice.STREAM_PIECES
                assert (blocks - 1) * choice.STREAM_WARPS * part < pieces, "no block without a part of the row"
                assert found.block[0] == 32 * (choice.STREAM_WARPS + 2)
                assert found.shared_bytes == choice.STREAM_SLOTS * choice.STREAM_WARPS * choice.STREAM_PIECES * 512
                assert found.shared_bytes <= choice.MOST_DYNAMIC_SHARED
                assert found.zeroed_bytes == found.scratch_bytes <= 64 * 1024
                assert found.of_its_own == f"stream {blocks} {groups}", "launches over another grid find no numbers where these left them"
                assert found.cooperative
                assert unit_of(found.kernel) == STREAM
    above = choice.STREAM_ABOVE / 1024
    mib = {columns: columns * plan.ITEM_BYTES[dtype] / 2**20 for columns in COLUMNS}
    whole = {columns for columns in COLUMNS if columns * plan.ITEM_BYTES[dtype] % plan.VECTOR_BYTES == 0}
    assert {columns for sm_count, columns in taken if sm_count == 132} == {columns for columns in whole if above < mib[columns] <= 4.125}
    assert 7 not in dict(taken), "a row above 2 MiB fits no 7 SMs"


def test_each_form_of_small_blocks_has_a_kernel_and_room_for_all_of_a_row() -> None:
    """A kernel that knows its threads reads nothing twice: what registers and shared memory do not hold would be written beyond these."""
    source, threads = (FOLDER / "softmax/softmax.cu").read_text(), choice.SMALL_THREADS
    of_all = {(int(b), int(t)) for b, t in re.findall(r"SOFTMAX_SMALL_KERNEL\(dtype, Storage, (\d+), (\d+)\)", source)}
    assert of_all == {(blocks, threads) for _, blocks in choice.SMALL}
    assert _constant((FOLDER / "softmax/cluster.cuh").read_text(), "CLUSTER_PIECES") == choice.CLUSTER_PIECES
    few = [(most, blocks) for most, blocks, threads_of_few in choice.CLUSTERS_OF_FEW if threads_of_few == threads]
    for most, blocks in (*choice.SMALL, *few):
        found = choice.of_clusters(1, most * 1024, "float32", blocks, threads)
        assert found.kernel == f"softmax_float32_cluster{blocks}_{threads}_v16"
        assert blocks * (threads * choice.CLUSTER_PIECES * 16 + found.shared_bytes) >= most * 1024


@pytest.mark.parametrize("dtype", plan.ITEM_BYTES)
def test_small_blocks_are_for_many_rows_and_leave_room_for_as_many_an_sm(dtype: str) -> None:
    for most, blocks in choice.SMALL[1:]:
        columns, wave = most * 1024 // plan.ITEM_BYTES[dtype], 132 * (1024 // choice.SMALL_THREADS) // blocks
        many, few = (
            choice.softmax(rows, columns, dtype, aligned=True, sm_count=132, capability=(9, 0))
            for rows in (choice.SMALL_WAVES * (wave + 1), choice.SMALL_WAVES * wave - 1)
        )
        assert (many.kernel, many.block[0]) == (f"softmax_{dtype}_cluster{blocks}_192_v16", choice.SMALL_THREADS)
        told = (128 + 32) * 8 + 128  # pairs of warps, and a bell
        assert 1024 // choice.SMALL_THREADS * (many.shared_bytes + told + 1024) <= 228 * 1024
        assert few.block[0] > choice.SMALL_THREADS or few.grid[0] // (choice.SMALL_WAVES * wave - 1) < blocks


@pytest.mark.parametrize("size", [2, 4])
def test_short_rows_share_a_block_and_its_banks(size: int) -> None:
    for columns in range(1, staged_rows.LONGEST + 1):
        tile = staged_rows.tile_of(columns, size)
        assert tile.lanes * tile.elements >= columns
        assert tile.height % 8 == 0, "so that the next block begins on 16 bytes"
        assert tile.height * columns * size <= staged_rows.MOST_BYTES
        groups = staged_rows.THREADS // tile.lanes
        assert {group * tile.turn % groups for group in range(groups)} == set(range(groups)), "each row once"
        if columns * size % 16:
            assert staged_rows._conflicts(columns, size, tile.lanes, tile.turn) <= 2
            assert staged_rows.takes(2**20, columns, size)
    assert not staged_rows.takes(2**20, staged_rows.LONGEST + 1, size)
    assert not staged_rows.takes(3, 31, size)


def test_many_short_rows_go_through_shared_memory_where_both_tensors_begin_on_16_bytes() -> None:
    for columns, aligned, kernel in ((31, True, "short1x32"), (127, True, "short4x32"), (31, False, "warp4_v2"), (32, True, "warp8_v16")):
        found = choice.softmax(2**20, columns, "float16", aligned, sm_count=132, capability=(9, 0))
        assert found.kernel == f"softmax_float16_{kernel}"


def test_rows_off_alignment_take_the_kernels_that_read_single_elements() -> None:
    for columns, aligned in ((65_537, True), (65_536, False)):
        found = choice.softmax(256, columns, "float32", aligned, sm_count=132, capability=(9, 0))
        assert found.kernel == "softmax_float32_long_v4"


@pytest.mark.parametrize("rung", softmax_ladder.RUNGS)
def test_a_rung_takes_every_row_or_says_what_it_holds(rung: str) -> None:
    source = (FOLDER / "softmax/ladder/ladder.cu").read_text()
    most, held = softmax_ladder.MOST_THREADS, softmax_ladder.HELD
    assert f"THREADS = {softmax_ladder.THREADS};" in source
    assert f"MOST_THREADS = {most}, HELD = {held};" in source
    for rows in ROWS:
        for columns in (*COLUMNS, most * held, most * held + 1):
            longest = {"registers": most * held, "textbook": softmax_ladder.MOST_OF_THREAD}.get(rung)
            if longest and columns > longest:
                with pytest.raises(UnsupportedWorkload, match=f"{columns} columns given, {longest} are"):
                    softmax_ladder.plan(rung, rows, columns, "float32")
                continue
            found = softmax_ladder.plan(rung, rows, columns, "float32")
            threads = found.grid[0] * found.block[0]
            assert found.block[0] % 32 == 0
            assert threads >= rows if rung == "textbook" else found.grid[0] == rows
            assert rung != "registers" or (columns <= found.block[0] * held and found.block[0] <= most)


def test_the_plan_and_the_sources_agree_about_sizes() -> None:
    for name, sizes in {
        "mean.cu": {"MEAN_THREADS": plan.MEAN_THREADS, "MEAN_PIECES": plan.MEAN_PIECES, "MEAN_BLOCKS": plan.MEAN_BLOCKS_PER_SM},
        "softmax/stream.cu": {f"STREAM_{name}": getattr(choice, f"STREAM_{name}") for name in ("WARPS", "PIECES", "SLOTS", "ROWS")},
    }.items():
        source = (FOLDER / name).read_text()
        assert {key: _constant(source, key) for key in sizes} == sizes


def _constant(source: str, name: str) -> int:
    found = re.findall(rf"\b{name} = (\d+)", source)
    assert len(found) == 1, f"{name} is defined {len(found)} times"
    return int(found[0])
