"""softmax's kernels in Gluon, which no stand-in runs: what the compiler made of them, and their plans."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from triton_sass import LINE, disassembly, needs_triton

SPECIMENS = """
from opwise.backends.triton_jit import softmax_cluster, softmax_warps
rows = softmax_cluster.specimen(softmax_cluster.Plan(131056, "bfloat16", softmax_cluster.SMALL[2]))
specimens = (rows, next(iter(softmax_warps.specimens().values())))
"""


@pytest.fixture(scope="module")
def available():
    needs_triton()


@pytest.fixture(scope="module")
def disassembled(available):
    """By kernel."""
    return disassembly(SPECIMENS)


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


def test_warps_of_a_stream_meet_once_and_give_a_place_back_behind_their_stores(disassembled):
    """What a lane has read of a place it has computed with and stored before the copy engine may fill the place anew."""
    sass = disassembled["warps_kernel"]
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


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("columns", [16384, 31728, 32768, 65536, 100000, 131072, 262160, 524288, 1048576, 2**22])
def test_a_staged_plan_covers_the_row_and_fits_its_memory(available, columns, dtype):
    from opwise.backends.triton_jit.softmax_staged import planned

    plan = planned(columns, dtype)
    if plan is None:
        assert (dtype, columns <= 262144) == ("float32", True), "of float32 alone, whose shorter rows are as quick in registers"
        return
    assert plan.resident == (plan.parts > 1), "parts of a row wait for each other, which takes a launch that runs as a whole"
    assert plan.part % 16 == 0
    assert (plan.parts - 1) * plan.part < columns <= plan.parts * plan.part
    assert plan.part <= plan.chunks * plan.chunk, "a part lies in its chunks"
    assert plan.chunks * plan.chunk * plan.size <= plan.kib * 1024 < 226 * 1024
    assert plan.counter_bytes % 16 == 0
    assert plan.counter_bytes // 4 <= plan.fixed["RESET"]
    assert plan.scratch_bytes <= 64 * 1024
    assert not plan.fixed["EVEN"] or plan.parts * plan.chunks * plan.chunk == columns


def test_rows_are_staged_by_no_more_programs_than_run_at_once(available):
    from opwise.backends.triton_jit.softmax_staged import at_once, planned

    h200 = {"max_threads_per_multi_processor": 2048, "multi_processor_count": 132, "shared_memory_per_multiprocessor": 228 * 1024}
    small = {**h200, "multi_processor_count": 20, "shared_memory_per_multiprocessor": 100 * 1024}
    loaded = []

    class Compiled(SimpleNamespace):
        @property
        def run(self):
            loaded.append(self)

    def programs(columns, gpu, registers):
        plan = planned(columns, "bfloat16")
        compiled = Compiled(n_regs=registers, metadata=SimpleNamespace(shared=plan.kib * 1024))
        return at_once(plan.warps, compiled, SimpleNamespace(**gpu))

    assert programs(2**20, h200, 56) == 3 * 132, "by shared memory"
    assert programs(2**20, h200, 168) == 1 * 132, "by registers"
    assert programs(131072, h200, 32) == 6 * 132
    assert programs(2**20, small, 56) == 20
    assert len(loaded) == 4
    assert programs(65536, small, 80) == 0
    assert len(loaded) == 4, "128 KiB do not fit, and Triton refuses to load it"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_stream_covers_the_row_and_fits_its_memory(available, dtype):
    from opwise.backends.triton_jit.softmax_stream import WARPS, planned

    for columns in (131088, 262160, 300000, 524288, 786448, 1048560, 1048576, 1048592, 1500000, 2**21, 2**22 - 16, 2**22):
        plan = planned(columns, dtype)
        if plan is None:
            assert dtype == "float32", "which has shorter rows, as quick in registers, and none above 8 MiB"
            assert columns <= 262144 or columns > 2**21
            continue
        assert plan.part % 16 == 0
        assert (plan.parts - 1) * plan.part < columns <= plan.parts * plan.part
        assert plan.part <= plan.room == plan.fixed["VECTORS"] * WARPS * 32 * 16 // plan.size, "a part lies in its place"
        assert plan.parts <= 32 * WARPS, "a thread hears of each part"
        assert 1 <= plan.later < plan.slots, "a row keeps its place until its result, and the next has one"
        assert 2 * (plan.slots * plan.kib + 2) <= 228, "two programs a multiprocessor, with what they take beside"
        assert not plan.fixed["EVEN"] or plan.parts * plan.room == columns
        for rows in (1, 40, 1000):
            groups = plan.groups(rows, 264)
            assert groups * plan.parts <= 264, "all run at once"
            assert plan.scratch_bytes(groups) <= 64 * 1024
            assert groups == 0 or 16 * 3 * groups * plan.parts >= 15 * 2 * 264, "a third stands idle at most, and one group of 16"


def test_a_stream_takes_most_of_the_gpu_and_no_program_more(available):
    from opwise.backends.triton_jit.softmax_stream import planned

    assert planned(131072, "float16") is None
    assert planned(262144, "float32") is None
    assert planned(2**21 + 16, "bfloat16") is planned(2**21 + 16, "float32") is None
    assert planned(2**22, "bfloat16").groups(64, 264) == 1
    assert planned(2**20, "bfloat16").groups(256, 264) == 4
    assert planned(2**20, "float32").groups(256, 264) == 2
    assert planned(262144, "float16").groups(60, 264) == 15, "four full turns, where of 16 groups the last would have 12 of 16 rows"
    assert planned(262144, "float16").groups(512, 264) == 16
    assert planned(1_100_000, "float32").groups(256, 264) == 0, "135 parts: half of the programs would stand idle"
    assert planned(2**20, "bfloat16").groups(256, 60) == 0, "64 parts wait for each other, and 60 run at once"


@pytest.mark.parametrize("row_bytes", [2**20 + 32, 1_500_000, 3 * 2**19, 2**21, 2**21 + 2080, 3 * 2**20, 2**22])
def test_a_streams_warps_cover_the_row_and_none_is_asked_for_more_than_its_place_holds(available, row_bytes):
    from opwise.backends.triton_jit.softmax_warps import COMPUTING, LAG, PIECES, ROWS, SLOTS, planned

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
    from opwise.backends.triton_jit.softmax_cluster import FORMS, Plan, form_of

    for row_bytes in (
        1024 * next(most for most, form in FORMS[dtype].items() if form is None) + 64,
        99008,
        131072,
        131136,
        196672,
        262080,
        262144,
        327712,
        524288,
        721088,
        1048512,
        2**20,
    ):
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
    assert form.shared_by * (plan.staged * plan.piece * 4 + 2048) <= 228 * 1024
    assert form.shared_by * form.warps * 32 * form.registers <= 65536
    assert form.wave(rows, 132) % form.blocks == 0


@pytest.mark.parametrize(("size", "dtype"), [(4, "float32"), (2, "float16")])
def test_what_is_quicker_for_some_numbers_of_rows_is_asked_first_holds_its_rows_and_is_offered(available, monkeypatch, size, dtype):
    from opwise.backends.triton_jit import softmax_offered
    from opwise.backends.triton_jit.softmax_cluster import Form, Plan

    def first(rows, columns, capability=(9, 0)):
        return next(softmax_offered.in_turn(rows, columns, dtype, 132, capability))

    for each in softmax_offered.RANGES[size]:
        for columns in (each.columns[0], sum(each.columns) // 32 * 16, each.columns[1]):
            for rows in each.rows[0], min(each.rows[1], 100000):
                assert first(rows, columns) == each.way
                assert each.way.name in softmax_offered.offered(rows, columns, dtype, True, 132, (9, 0))
                assert first(rows, columns, (8, 0)).kind in ("tile", "row", "parts"), "measured on an H200 alone"
                if each.way.kind == "cluster":
                    holds(Plan(columns, dtype, Form(*each.way.numbers)), rows)
        below, above = (each.rows[0] - 1, each.columns[1]), (each.rows[0], each.columns[1] + 16)
        same = [other for other in softmax_offered.RANGES[size] if other is not each and other.way == each.way]
        for beside in (below, above):
            assert each.way != first(*beside) or any(other.has(*beside) for other in same)
    monkeypatch.setattr(softmax_offered, "KNOWN", False)
    asked = [each.way for each in softmax_offered.RANGES[size] if first(each.rows[0], each.columns[0]) == each.way]
    assert all(way.kind != "cluster" or way.numbers[0] == 1 for way in asked)
    assert len(asked) < len(softmax_offered.RANGES[size])


def test_rows_that_begin_anywhere_take_what_was_quickest_for_them(available):
    """65536 x 257, 32760 x 4097 and 35292 x 3803, as an H200 took them; next to them are rows on 16 bytes."""
    from opwise.backends.triton_jit import softmax_offered

    assert softmax_offered.own_tile(65536, 257, "float32").numbers[0] == 2048
    assert softmax_offered.own_tile(65536, 272, "float32").numbers[0] == 1024
    assert softmax_offered.own_row(4097, "float32").name == "row8"
    assert softmax_offered.own_row(4112, "float32").name == "row16"
    assert [softmax_offered.own_row(columns, "bfloat16").name for columns in (3803, 3808)] == ["row4", "row8"]


def test_few_rows_are_shared_by_more_programs_and_no_cluster_is_asked_of_a_triton_that_was_not_read(available, monkeypatch):
    from opwise.backends.triton_jit import softmax_cluster

    def blocks(rows, kib, dtype="float16"):
        form = softmax_cluster.form_of(rows, kib * 1024, dtype, 132)
        return form and form.blocks

    assert [blocks(rows, 128) for rows in (1, 28, 29, 57, 58, 115, 116, 5000)] == [16, 16, 8, 8, 4, 4, 2, 2]
    assert [blocks(rows, 512, "float32") for rows in (28, 29, 58)] == [16, 8, 4]
    assert [blocks(4096, kib) for kib in (64, 65, 1024, 1025)] == [None, 2, 16, None]
    assert [blocks(4096, kib, "float32") for kib in (96, 97, 128, 129, 158, 223)] == [None, 1, 1, 4, 8, 4]
    monkeypatch.setattr(softmax_cluster, "KNOWN", False)
    assert [blocks(rows, kib, "float32") for rows, kib in ((1, 128), (4096, 128), (4096, 256))] == [1, 1, None]
    assert blocks(4096, 128) is None


def test_clusters_begin_in_phases_where_a_second_wave_follows(available):
    from opwise.backends.triton_jit.softmax_cluster import Form

    assert Form(1, 16, 8, 2).wave(2048, 132) == 264
    assert Form(1, 16, 8, 2).wave(264, 132) == 0
    assert Form(8, 8, 8, 4).wave(512, 132) == 488, "of 495, in whole clusters"
    assert Form(8, 8, 8, 4).wave(122, 132) == 0, "two waves of small ones"
