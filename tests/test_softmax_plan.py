"""What the CUDA C++ backends launch for a row of any length fits the GPU and holds what it should hold."""

from __future__ import annotations

import re

import pytest

from opwise.backends.cuda_src import plan
from opwise.backends.cuda_src.softmax import choice
from opwise.backends.cuda_src.softmax import ladder as softmax_ladder
from opwise.backends.cuda_src.sources import FOLDER, STREAM, unit_of
from opwise.backends.protocol import UnsupportedWorkload

COLUMNS = (
    *(1, 8, 31, 1024, 1032, 2048, 4096, 8192, 8200, 16384, 16392, 24576, 24584, 32768, 32771, 32776),
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
            assert found.block[0] % 32 == 0
            assert found.block[0] <= 1024
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
    above = choice.STREAM_ABOVE[plan.ITEM_BYTES[dtype]] / 1024
    mib = {columns: columns * plan.ITEM_BYTES[dtype] / 2**20 for columns in COLUMNS}
    whole = {columns for columns in COLUMNS if columns * plan.ITEM_BYTES[dtype] % plan.VECTOR_BYTES == 0}
    assert {columns for sm_count, columns in taken if sm_count == 132} == {columns for columns in whole if above < mib[columns] <= 4.125}
    assert 7 not in dict(taken), "a row above 512 KiB fits no 7 multiprocessors"


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
def test_rows_that_one_block_keeps(capability: tuple[int, int]) -> None:
    half = 320 if capability >= (9, 0) else 512  # with the rest in shared memory, of which there is less before sm_90
    for dtype, columns, kernel, threads in (("float32", 16384, "block32", 512), ("float32", 16392, "cluster1", half),
                                            ("float32", 24576, "cluster1", half), ("float32", 28672, "cluster1", 896),
                                            ("float32", 32768, "cluster1", 1024), ("float16", 24576, "cluster1", 256),
                                            ("float16", 32768, "cluster1", 320 if half == 320 else 256)):  # fmt: skip
        found = choice.softmax(256, columns, dtype, aligned=True, sm_count=132, capability=capability)
        assert (found.kernel, found.block[0]) == (f"softmax_{dtype}_{kernel}_v16", threads)


def test_each_form_of_small_blocks_has_a_kernel_and_room_for_all_of_a_row() -> None:
    """A kernel that knows its threads reads nothing twice: what registers and shared memory do not hold would be written beyond these."""
    source = (FOLDER / "softmax/softmax.cu").read_text()
    of_all = {
        (int(blocks), int(threads)) for blocks, threads in re.findall(r"SOFTMAX_SMALL_KERNEL\(dtype, Storage, (\d+), (\d+)\)", source)
    }
    every = {row[:3] for rows in (*choice.CLUSTERS.values(), choice.CLUSTERS_OF_FEW) for row in rows}
    small = {row for row in every if row[2] <= choice.SMALL_THREADS}
    assert of_all == {row[1:] for row in small}
    assert _constant((FOLDER / "softmax/cluster.cuh").read_text(), "CLUSTER_PIECES") == choice.CLUSTER_PIECES
    for most, blocks, threads in small:
        for dtype in plan.ITEM_BYTES:
            found = choice.of_clusters(1, most * 1024, dtype, blocks, threads)
            assert found.kernel == f"softmax_{dtype}_cluster{blocks}_{threads}_v16"
        assert blocks * (threads * choice.CLUSTER_PIECES * 16 + found.shared_bytes) >= most * 1024


@pytest.mark.parametrize("dtype", plan.ITEM_BYTES)
def test_small_blocks_are_for_many_rows_and_leave_room_for_as_many_a_multiprocessor(dtype: str) -> None:
    size = plan.ITEM_BYTES[dtype]
    for most, blocks, threads, waves in choice.CLUSTERS[size]:
        columns, wave = (most * 1024 - 16) // size, 132 * (1024 // threads) // blocks  # whole ones may be kept as numbers
        many, few = (
            choice.softmax(rows, columns, dtype, aligned=True, sm_count=132, capability=(9, 0)) for rows in (waves * wave, waves * wave - 1)
        )
        assert (many.kernel, many.block[0]) == (f"softmax_{dtype}_cluster{blocks}_{threads}_v16", threads)
        told = (128 + 32) * 8 + 128  # pairs of warps, and a bell
        assert 1024 // threads * (many.shared_bytes + told + 1024) <= 228 * 1024
        assert (size, most) == (2, 128) or most == 512 or few.block[0] > threads


def test_many_rows_of_4096_are_kept_as_they_are() -> None:
    for rows, columns, kernel, threads in ((4096, 4096, "cluster1", 256), (4095, 4096, "block16", 256), (4096, 4092, "block16", 256)):
        found = choice.softmax(rows, columns, "float32", aligned=True, sm_count=132, capability=(9, 0))
        assert (found.kernel, found.block[0], found.shared_bytes) == (f"softmax_float32_{kernel}_v16", threads, 0)


def test_short_rows_that_two_blocks_share_are_many() -> None:
    for columns, many in ((7168, "block16"), (7172, "cluster2"), (8192, "cluster2"), (8196, "block32")):
        for rows, kernel in ((329, "block32" if columns > 8192 else "block16"), (330, many)):
            found = choice.softmax(rows, columns, "float32", aligned=True, sm_count=132, capability=(9, 0))
            assert found.kernel.split("_")[2] == kernel, (rows, columns)
    for capability in ((8, 0), (12, 0)):
        found = choice.softmax(330, 8192, "float32", aligned=True, sm_count=132, capability=capability)
        assert found.kernel == "softmax_float32_block16_v16", "no clusters"


@pytest.mark.parametrize(
    ("rows", "columns", "kinds"),
    [(65536, 1016, ("warp32", "warp32")), (4096, 1024, ("block8", "block16")), (4095, 1024, ("block8", "warp32"))],
)
def test_where_a_block_takes_rows_over_from_a_warp(rows: int, columns: int, kinds: tuple[str, str]) -> None:
    for dtype, kind in zip(("float32", "bfloat16"), kinds, strict=True):
        found = choice.softmax(rows, columns, dtype, aligned=True, sm_count=132, capability=(9, 0))
        assert found.kernel.split("_")[2] == kind
        unaligned = choice.softmax(rows, columns, dtype, aligned=False, sm_count=132, capability=(9, 0))
        assert unaligned.kernel.split("_")[2] == "warp32"


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
            if rung == "registers" and columns > most * held:
                with pytest.raises(UnsupportedWorkload, match=f"{columns} columns given, {most * held} are held"):
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
