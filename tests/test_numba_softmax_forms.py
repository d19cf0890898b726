"""Which form numba_cuda's softmax gives a long row, on the H200 whose times chose them (docs/lab.md), and on other GPUs."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
CHILD = """
import tempfile
from opwise.backends.numba_cuda.softmax.stream import stream_kernel
from opwise.backends.numba_cuda.softmax.plan import STREAM
from opwise.inspecting.tools import ToolMissing, output
with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
    file.write(stream_kernel("float32", STREAM, 1).assemble("sm_90")[0])
    file.flush()
    try:
        print(output("nvdisasm", "--print-code", file.name))
    except ToolMissing as problem:
        print("MISSING", problem)
"""
SIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
# rows, columns, dtype -> blocks a row, threads a block; None: registers.py's kernels.
ON_H200 = {
    (4096, 8192, "float16"): None,
    (16384, 16384, "float16"): (1, 256),
    (4096, 32768, "bfloat16"): (1, 256),
    (10922, 12288, "float16"): (1, 256),
    (64, 12288, "float16"): None,
    (5461, 24576, "float32"): None,
    (3276, 25600, "float32"): (1, 512),
    (2048, 32768, "float32"): (2, 192),
    (16, 32768, "float32"): (16, 192),
    (2048, 65536, "bfloat16"): (2, 192),
    (1638, 81920, "bfloat16"): (2, 512),
    (1024, 65536, "float32"): (4, 192),
    (2048, 131072, "float16"): (4, 192),
    (256, 131072, "bfloat16"): (2, 512),
    (16, 131072, "bfloat16"): (16, 192),
    (2048, 131072, "float32"): (8, 192),
    (512, 262144, "bfloat16"): (8, 192),
    (128, 262144, "bfloat16"): (4, 512),
    (256, 262144, "float32"): (16, 192),
    (341, 196608, "float32"): (16, 192),
    (4, 262144, "float32"): (16, 512),
    (1, 524288, "bfloat16"): (16, 512),
    (1, 1048576, "float32"): (16, 1024),
    (300, 2**21, "float32"): None,
}
# The same -> blocks a row, groups, 16-byte pieces of a warp's part.
STREAMED = {
    (256, 1048576, "bfloat16"): (64, 2, 128),
    (256, 524288, "float16"): (32, 4, 128),
    (128, 524288, "float32"): (64, 2, 128),
    (256, 1048576, "float32"): (128, 1, 128),
    (341, 393216, "bfloat16"): (26, 5, 120),
    (8, 524288, "bfloat16"): (32, 4, 128),
}


@pytest.fixture(scope="module")
def forms():
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    return importlib.import_module("opwise.backends.numba_cuda.softmax.plan")


@pytest.fixture(scope="module")
def streams(forms):
    return importlib.import_module("opwise.backends.numba_cuda.softmax.plan")


def test_a_block_of_16_bits_has_no_more_values_than_a_row(forms) -> None:
    own = importlib.import_module("opwise.backends.numba_cuda.softmax.plan").own_threads
    threads = {(columns, dtype): own(columns, dtype, wide) for columns, dtype, wide in (
        (1024, "float16", True), (3072, "float16", True), (3072, "bfloat16", False), (3080, "bfloat16", True), (3072, "float32", True),
        (16384, "float32", True), (24580, "float32", False))}  # fmt: skip
    assert [*threads.values()] == [32, 128, 256, 256, 256, 512, 0]


@pytest.mark.parametrize(("rows", "columns", "dtype"), ON_H200)
def test_a_row_gets_the_form_that_was_fastest(forms, streams, rows, columns, dtype) -> None:
    asked = rows, columns * SIZE[dtype], dtype, 132, (9, 0)
    assert streams.stream_of(*asked) is None
    assert forms.form_of(*asked) == ON_H200[rows, columns, dtype]


@pytest.mark.parametrize(("rows", "columns", "dtype"), STREAMED)
def test_the_longest_rows_are_a_stream(streams, rows, columns, dtype) -> None:
    share = streams.stream_of(rows, columns * SIZE[dtype], dtype, 132, (9, 0))
    assert (share.blocks, share.groups, share.part) == STREAMED[rows, columns, dtype]


@pytest.mark.parametrize("dtype", SIZE)
def test_a_stream_fits_the_gpu_and_leaves_nothing_out(streams, dtype) -> None:
    """All blocks run at once, or they would wait for ever; no part is longer than a stage, and none is missing."""
    stream, taken = streams.STREAM, 0
    assert stream.shared_bytes <= 227 * 1024
    assert stream.lag < stream.stages
    assert stream.threads <= 1024
    assert stream.rows_kept > stream.lag
    assert stream.pairs_kept > 2 * stream.lag + 1
    assert stream.warps <= 32  # a lane of the telling warp has one's pair
    for processors in (78, 114, 132):
        for rows in (1, 3, 16, 100, 5000):
            for columns in range(8, 2_600_000, 20_008):
                share = streams.stream_of(rows, columns * SIZE[dtype], dtype, processors, (9, 0))
                assert streams.stream_of(rows, columns * SIZE[dtype], dtype, processors, (10, 0)) is None
                if share is None:
                    continue
                taken += 1
                assert columns * SIZE[dtype] > 512 * 1024
                assert share.blocks * share.groups <= processors
                assert share.part * 16 <= stream.stage_bytes
                assert share.part % 8 == 0
                assert share.blocks * stream.warps * share.part * 16 >= columns * SIZE[dtype]
                assert (share.blocks - 1) * stream.warps * share.part * 16 < columns * SIZE[dtype]
                assert share.groups * 2 <= rows
                assert share.scratch_bytes(stream) <= 64 * 1024
    assert taken > 100


@pytest.mark.parametrize("dtype", SIZE)
@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (9, 0), (10, 0)], ids=str)
def test_a_launch_fits_the_gpu(forms, dtype, capability) -> None:
    """No clusters but on sm_90, no cp.async before sm_80, a row whole between registers and shared memory, of which sm_86 has 99 KiB."""
    taken = set()
    for rows in (1, 7, 33, 132, 5000):
        for columns in range(8, 1_600_000, 7960):
            row_bytes = columns * SIZE[dtype]
            form = forms.form_of(rows, row_bytes, dtype, 132, capability)
            if form is None:
                continue
            taken.add(form.blocks)
            wave, together, _ = form.apart(rows, row_bytes, 132)
            assert wave < rows
            assert wave * form.blocks <= 132 * form.ctas_per_sm
            assert wave == 0 or together == 1 or (wave - 1) // together < form.ctas_per_sm
            shared = form.shared_bytes(row_bytes)
            assert capability != (9, 0) or form.ctas_per_sm * (shared + 2048) <= 228 * 1024
            assert form.blocks * (form.threads * forms.PIECES * 16 + shared) >= row_bytes
            assert shared <= form.most_shared <= (99 if form.blocks == 1 else 227) * 1024
    several = {2, 4, 8, 16}
    assert taken <= {1} if capability != (9, 0) else taken >= several
    assert (1 in taken) == (capability >= (8, 0))


def test_few_rows_take_more_blocks_as_long_as_all_run_at_once(forms) -> None:
    blocks = [forms.form_of(rows, 512 * 1024, "float32", 132, (9, 0)).blocks for rows in range(1, 200)]
    assert blocks == sorted(blocks, reverse=True)
    assert (blocks[0], blocks[35], blocks[36]) == (16, 16, 4)


def test_a_stage_of_the_stream_is_asked_for_behind_the_stores(streams) -> None:
    """Stores need what was read of it. Loads that are only asked for do not keep the next copy away: seen once in hundreds of launches."""
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"} | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-800:]
    if done.stdout.startswith("MISSING"):
        pytest.skip(done.stdout)
    order = re.findall(r"\b(LDS\.128|STG\.E\.128|SYNCS\.ARRIVE|UBLKCP)[ .](?!STRONG)", done.stdout)
    held = streams.STREAM.pieces
    first = order.index("LDS.128")
    assert set(order[:first]) <= {"SYNCS.ARRIVE", "UBLKCP"}
    assert order[first : first + held + 1] == ["LDS.128"] * held + ["SYNCS.ARRIVE"]
    stored = order[first + held + 1 :][: 2 * held]
    assert sorted(stored) == ["LDS.128"] * held + ["STG.E.128"] * held
    assert order[first + 3 * held + 1 :][:2] == ["SYNCS.ARRIVE", "UBLKCP"]
    assert not {"LDS.128", "STG.E.128", "UBLKCP"} & set(order[first + 3 * held + 3 :])
