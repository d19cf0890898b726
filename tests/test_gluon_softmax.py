"""softmax's kernels in Gluon, which no stand-in runs: what the compiler made of them, and their plans."""

from __future__ import annotations

import re

import pytest
from triton_sass import LINE, compiled_once, disassembly, needs_triton

SPECIMENS = """
from opwise.backends.triton_jit.softmax import cluster, stream
rows = cluster.specimen(cluster.Plan(131056, "bfloat16", cluster.FORMS[2]))
specimens = (rows, next(iter(stream.specimens().values())))
"""


@pytest.fixture(scope="module")
def available():
    needs_triton()


@pytest.fixture(scope="module")
def disassembled(available):
    """By kernel."""
    return disassembly(SPECIMENS)


@compiled_once
def test_a_row_is_asked_for_as_a_whole_before_anything_is_waited_for(disassembled):
    """The compiler may put a barrier between two copies, and what is computed of the first loads before the last are asked for."""
    names = [name for _, name, rest in LINE.findall(disassembled["cluster_kernel"]) if not rest.startswith("RZ, [RZ]")]
    begun = names.index("UCGABAR_WAIT")
    asked = [at for at, name in enumerate(names) if name.startswith(("LDG.", "LDGSTS"))]
    assert [names[at].split(".")[0] for at in asked].count("LDG") == 8
    assert len(asked) == 16
    first = next(at for at, name in enumerate(names) if name.startswith(("MUFU", "BAR", "FADD", "VHMNMX")) and at > asked[0])
    assert max(asked) < begun < first
    assert not [name for name in names if name.startswith(("MEMBAR", "STL"))], "the exchange takes no fence"


@compiled_once
def test_warps_of_a_stream_meet_once_and_give_a_place_back_behind_their_stores(disassembled):
    """What a lane has read of a place it has computed with and stored before the copy engine may fill the place anew."""
    sass = disassembled["stream_kernel"]
    names = [name for _, name, rest in LINE.findall(sass) if not rest.startswith("RZ, [RZ]")]
    assert [name.split(".")[0] for name in names].count("BAR") == 1, "in the beginning"
    assert not [name for name in names if name.startswith("STL")]
    assert names.count("MEMBAR.ALL.GPU") == 1, "of who leaves"
    stores = [at for at, name in enumerate(names) if name == "STG.E.128"][:4]
    reads = [at for at, name in enumerate(names) if name == "LDS.128" and at < stores[0]]
    asked = [at for at, name in enumerate(names) if name.startswith("UBLKCP")]
    assert len(reads) == 8, "four pieces of the row that has come, four of the one that goes"
    assert not any(reads[4] < at < stores[-1] for at in asked)
    assert int(re.match(r"shared (\d+)", sass)[1]) <= 227 * 1024


@pytest.mark.parametrize("row_bytes", [2**20 + 32, 1_500_000, 3 * 2**19, 2**21, 2**21 + 2080, 3 * 2**20, 2**22])
def test_a_streams_warps_cover_the_row_and_none_is_asked_for_more_than_its_place_holds(available, row_bytes):
    from opwise.backends.triton_jit.softmax.stream import COMPUTING, LAG, PIECES, ROWS, SLOTS, planned

    assert LAG < SLOTS, "a row keeps its place until its result, and the next has one"
    assert ROWS >= 2 * LAG + 2
    for rows in (1, 2, 3, 4096):
        plan = planned(rows, row_bytes, "bfloat16", 132)
        assert 1 <= plan.groups <= rows
        assert 3 * 132 >= 3 * plan.groups * plan.blocks >= 2 * 132, "all run at once, and a third stands idle at most"
        assert (plan.blocks - 1) * COMPUTING * plan.part < plan.pieces <= plan.blocks * COMPUTING * plan.part
        assert plan.part % 8 == 0, "parts begin where cache lines do"
        assert plan.part <= PIECES * 32
        assert plan.blocks <= 32 * plan.fixed["BATCH"]
        assert plan.fixed["EVEN"] == (plan.pieces == plan.blocks * COMPUTING * PIECES * 32)
    assert planned(4096, 2**20, "bfloat16", 132) is None, "clusters are quicker"
    assert planned(4096, row_bytes, "bfloat16", 30) is None, "no place for a row"


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_a_clusters_programs_cover_the_row_and_fit_their_multiprocessor(available, dtype, size):
    from opwise.backends.triton_jit.softmax.cluster import PROGRAMS, Plan, form_of

    least = 1024 * next(most for most, blocks in PROGRAMS[dtype].items() if blocks is None) + 64
    for row_bytes in (least, 99008, 131072, 131136, 196672, 262080, 262144, 327712, 524288, 721088, 1048512, 2**20):
        for rows in (1, 4, 16, 60, 4096):
            holds(Plan(row_bytes // size, dtype, form_of(rows, row_bytes, dtype, 132)), rows)


def holds(plan, rows):
    form, words = plan.form, plan.columns // plan.ratio
    last = words - (form.blocks - 1) * plan.part
    assert 0 < last <= plan.part, "the last program has something to do, and no more than the others"
    assert plan.part % 32 == 0, "parts begin where cache lines do"
    assert plan.part <= (form.held + plan.staged) * plan.piece, "a part lies in its pieces"
    assert plan.full * plan.piece <= last, "what is not masked is there in every program"
    assert plan.full * plan.piece * form.blocks == words or plan.full < form.held + plan.staged
    assert form.ctas_per_sm * (plan.staged * plan.piece * 4 + 2048) <= 228 * 1024
    assert form.ctas_per_sm * form.warps * 32 * form.registers <= 65536
    assert form.wave(rows, 132) % form.blocks == 0


def test_a_tile_holds_its_rows_and_a_warp_has_work(available):
    from opwise.backends.triton_jit.softmax import configurations

    for rows in (1, 3, 700, 2**20):
        for columns in range(1, 1025):
            kind, (elements, warps) = configurations.own_tile(rows, columns)
            assert elements >= columns
            assert elements & (elements - 1) == 0
            assert 1 <= warps <= max(1, elements // 256)
            if kind == "flat":
                assert elements // columns >= 8, "so that a line begins on 16 bytes"
                assert elements * columns < 2**20, "or the reciprocal is not exact"
    assert configurations.own_tile(2**20, 31).kind == "flat"
    assert configurations.own_tile(2**20, 32).kind == configurations.own_tile(2, 31).kind == "tile"


def test_few_rows_are_shared_by_more_programs_and_no_cluster_is_asked_of_a_triton_that_was_not_read(available, monkeypatch):
    from opwise.backends.triton_jit.softmax import cluster

    def blocks(rows, kib, dtype="float16"):
        form = cluster.form_of(rows, kib * 1024, dtype, 132)
        return form and form.blocks

    assert [blocks(rows, 128) for rows in (1, 28, 29, 57, 58, 115, 116, 5000)] == [16, 16, 8, 8, 4, 4, 2, 2]
    assert [blocks(4096, kib) for kib in (32, 33, 1024, 1025)] == [None, 2, 16, None]
    assert [blocks(4096, kib, "float32") for kib in (60, 61, 97, 257)] == [None, 4, 8, 16]
    monkeypatch.setattr(cluster, "KNOWN", False)
    assert blocks(4096, 128) is None


def test_clusters_begin_in_phases_where_a_second_wave_follows(available):
    from opwise.backends.triton_jit.softmax.cluster import Form

    assert Form(1, 16, 8, 2).wave(2048, 132) == 264
    assert Form(1, 16, 8, 2).wave(264, 132) == 0
    assert Form(8, 8, 8, 4).wave(512, 132) == 488, "of 495, in whole clusters"
    assert Form(8, 8, 8, 4).wave(122, 132) == 0, "two waves of small ones"
