"""The kernels written in Gluon, which no stand-in runs: what the compiler made of products', and the plans of softmax's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from opwise.backends import triton_jit
from opwise.backends.protocol import BackendUnavailable

SOURCE = Path(__file__).resolve().parents[1] / "src"
CHILD = """
import subprocess, tempfile
from triton import knobs
from opwise.backends.triton_jit import matmul_fma, matmul_split, matmul_tma, matmul_turned, softmax_cluster, softmax_warps
from opwise.backends.triton_jit.specimen import compiled
tf32 = [matmul_tma.tf32_specimen(c) for c in matmul_tma.TF32_CONFIGS[1:]]
split = [matmul_split.specimen(c, "float16") for c in matmul_tma.HALF_CONFIGS if c.split == 8]
turned = [matmul_turned.specimen(c, "bfloat16") for c in matmul_tma.HALF_CONFIGS if c.turned]
fma = [matmul_fma.specimen(c) for c in matmul_tma.FMA_CONFIGS[:1]]
rows = [softmax_cluster.specimen(softmax_cluster.Plan(131056, 'bfloat16', softmax_cluster.HALF[256]))]
stream = list(softmax_warps.specimens().values())[:1]
for specimen in (*tf32, *split, *turned, *fma, *rows, *stream):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        made = compiled(specimen, "sm_90")
        binary.write(made.asm["cubin"])
        binary.flush()
        kinds = {"RESIDENT": "_resident", "FEW_ROWS": "_few"}
        kind = next((kind for name, kind in kinds.items() if specimen.constants.get(name)), "")
        print(f"KERNEL {specimen.kernel.__name__}{kind}")
        print(f"shared {made.metadata.shared}", flush=True)
        subprocess.run([knobs.nvidia.cuobjdump.path, "-sass", binary.name], check=True)
"""
LINE = re.compile(r"/\*([0-9a-f]{4,5})\*/\s+(?:@!?U?P\d+ )?([A-Z0-9_.]+)\s*([^;]*);")
PRODUCT = re.compile(r"R\d+, R(\d+), gdesc")


def hazards(sass: str) -> list[str]:
    """Instructions that write to registers which a wgmma in flight reads from, going once round each loop: one line each.

    A wgmma reads its first factor from four registers. Those up to one that says `gsb0` are a group, and a group is done where the
    warpgroup waits until no more than the later ones are left.
    """
    lines = [(int(address, 16), name, rest.strip()) for address, name, rest in LINE.findall(sass)]
    products = [at for at, (_, name, _) in enumerate(lines) if name.startswith("HGMMA")]
    order = list(range(len(lines)))
    for at, (address, name, rest) in enumerate(lines):
        if name == "BRA" and (target := int(rest.split("0x")[-1], 16)) < address and any(address > lines[p][0] >= target for p in products):
            start = next(i for i, (each, _, _) in enumerate(lines) if each >= target)
            order[order.index(at) + 1 : order.index(at) + 1] = range(start, at + 1)
    groups: list[set[int]] = [set()]  # the last is still open
    found = []
    for at in order:
        _, name, rest = lines[at]
        if name.startswith("HGMMA"):
            if first := PRODUCT.search(rest):
                groups[-1] |= set(range(int(first[1]), int(first[1]) + 4))
            if "gsb0" in rest:
                groups.append(set())
        elif name.startswith("WARPGROUP.DEPBAR"):
            left = int(rest.split("0x")[-1], 16)
            groups = groups[max(len(groups) - 1 - left, 0) :]
        elif (target := re.match(r"R(\d+)", rest)) and not name.startswith(("ST", "BRA")):
            wide = {"128": 4, "64": 2, "WIDE": 2}
            count = max((wide[part] for part in name.split(".") if part in wide), default=1)
            if set().union(*groups) & set(range(int(target[1]), int(target[1]) + count)):
                found.append(f"{name} {rest}")
    return found


@pytest.fixture(scope="module")
def available():
    try:
        triton_jit.probe(torch.device("cpu"))
    except BackendUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def disassembled(available):
    """By kernel. Of the tiles by warps of different roles the one of two tensors of sums; each takes seconds to compile."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-800:]
    return dict(sass.split("\n", 1) for sass in done.stdout.split("KERNEL ")[1:])


@pytest.mark.parametrize("kernel", ["roles_kernel", "warpgroup_kernel"])
def test_no_register_is_written_while_the_tensor_cores_read_it(disassembled, kernel):
    assert disassembled[kernel].count("HGMMA") >= 12, "four for the first step, and eight in the loop"
    assert hazards(disassembled[kernel]) == []


@pytest.mark.parametrize("kernel", ["turned_kernel", "turned_kernel_resident"])
def test_warpgroups_wait_for_copies_and_not_for_each_other(disassembled, kernel):
    """In the loop the step before alone is waited for, behind the next step's products: ptxas may wait for each wgmma instead."""
    lines = [(name, rest) for _, name, rest in LINE.findall(disassembled[kernel])]
    at = [i for i, (name, _) in enumerate(lines) if name.startswith("HGMMA")]
    waits = [i for i, (name, _) in enumerate(lines) if name == "WARPGROUP.DEPBAR.LE"]
    assert len(at) == 4, "64 of K in steps of 16"
    assert [int(lines[i][1].split("0x")[-1], 16) for i in waits] == [1, 0]
    assert at[-1] < waits[0]
    assert not any(name.startswith("BAR") for name, _ in lines[at[0] : waits[1]])
    arrivals = [rest for name, rest in lines[waits[0] : waits[1]] if name.startswith("SYNCS.ARRIVE") and "A1T0" in name]
    assert len(arrivals) == 1
    assert re.search(r"\[R\d+\+UR\d+\]", arrivals[0]), (
        "at the stage that was used, and not at the first, as where Triton took it for a constant"
    )


@pytest.mark.parametrize(("kernel", "stages", "rows"), [("turned_kernel", 6, 144), ("turned_kernel_resident", 5, 192)])
def test_barriers_lie_behind_the_ring_and_results_behind_them(disassembled, kernel, stages, rows):
    sass = disassembled[kernel]
    ring = stages * (rows + 128) * 128
    made = [int(each, 16) for each in re.findall(r"SYNCS\.EXCH\.64 \S+ \[U?R\d+\+0x([0-9a-f]+)\]", sass)]
    assert sorted(made) == [ring + 8 * i for i in range(2 * stages)]
    results = [int(each or "0", 16) for each in re.findall(r"STSM\S+ \[R\d+(?:\+0x([0-9a-f]+))?\]", sass)]
    assert len(results) == rows // 16
    if kernel.endswith("resident"):
        assert min(results) >= ring + 2048
    assert int(re.match(r"shared (\d+)", sass)[1]) == max(max(results) + 4096, ring + 2048), "no one else has any"


def test_multiply_adds_stand_in_the_order_in_which_they_were_written(disassembled):
    """Most keep an element of a or of b for the next. In the loop over steps, which has one over turns in it, the program meets once."""
    lines = [(int(address, 16), name, rest) for address, name, rest in LINE.findall(disassembled["fma_kernel"])]
    products = [rest for _, name, rest in lines if name == "FFMA"]
    assert len(products) == 8 * 16 * 8, "a turn's, each of which is one instruction"
    assert sum(".reuse" in rest for rest in products) >= 0.8 * len(products)
    loads = [name for _, name, _ in lines if name.startswith("LDS")]
    assert (loads.count("LDS"), loads.count("LDS.128")) == (8 * 9, 4 * 9), "of 8 k, and of the first before the loop"
    at = next(address for address, name, _ in lines if name == "FFMA")
    turns = [(int(rest.split("0x")[-1], 16), address) for address, name, rest in lines if name == "BRA" and "0x" in rest]
    loops = sorted((turn for turn in turns if turn[0] <= at < turn[1]), key=lambda turn: turn[1] - turn[0])
    met = [address for address, name, _ in lines if name.startswith("BAR")]
    assert [sum(start <= address <= end for address in met) for start, end in loops[:2]] == [0, 1]


def test_barriers_lie_where_they_are_waited_for(disassembled):
    """Behind three stages of 32 KiB: those of a, then those of b."""
    begun = [int(each, 16) for each in re.findall(r"SYNCS\.EXCH\.64 URZ, \[UR\d+\+(0x[0-9a-f]+)\]", disassembled["fma_kernel"])]
    assert len(begun) >= 4, "some addresses are computed before"
    assert {each - 3 * 32768 for each in begun} <= {0, 8, 16, 32, 40, 48}
    assert max(begun) == 3 * 32768 + 48


@pytest.mark.parametrize("kernel", ["split_kernel", "split_kernel_few"])
def test_shared_memory_is_the_sums_once_the_cluster_has_met(disassembled, kernel):
    """From the last wait for products to the first meeting it is written by the sums alone, then only read, until all have met again."""
    lines = [(name, rest) for _, name, rest in LINE.findall(disassembled[kernel])]
    end = max(at for at, (name, rest) in enumerate(lines) if name.startswith("WARPGROUP.DEPBAR") and "0x0" in rest)
    last = next(at for at, (name, _) in enumerate(lines) if at > end and name == "EXIT")
    kinds = ("ST", "LD", "SYNCS", "ATOMS", "UTMA", "RED", "UCGABAR_WAIT")
    names = [name for name, _ in lines[end:last] if name.startswith(kinds) and not name.startswith("LDC")]  # those read constants
    met = [at for at, name in enumerate(names) if name == "UCGABAR_WAIT"]
    assert len(met) == 2
    assert set(names[: met[0]]) == {"STS.128"}
    assert {name for name in names[met[0] + 1 : met[1]] if not name.startswith("STG")} == {"LD.E.128"}
    assert names[met[1] + 1 :] == []


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


def test_a_launcher_is_told_of_clusters_in_its_own_words_or_not_at_all(available, monkeypatch):
    from triton.backends.nvidia import compiler, driver

    from opwise.backends.triton_jit import clusters, matmul_tma

    told = compiler.CUDABackend.pack_metadata(None, SimpleNamespace(num_warps=4, num_ctas=1, shared=9, cluster_dims=(1, 1, 1)))
    folder = Path(driver.__file__).parent
    launcher = "".join(path.read_text() for path in (folder / "driver.py", folder / "driver.c"))
    compiled = SimpleNamespace(packed_metadata=told, metadata=SimpleNamespace(num_warps=4, num_ctas=1, shared=9))
    if clusters.KNOWN:
        assert all(each in launcher for each in ("gridDimX = gridX * num_ctas", "clusterDim.x = num_ctas"))
        assert re.search(r"&num_warps,\s*&num_ctas,\s*&shared_memory", launcher)
        for _ in range(2):  # a kernel is found compiled by every product that it fits
            clusters.in_clusters(compiled, 8)
            assert compiled.packed_metadata == (4, 8, 9)
    for other in ((4, 1, 9, 1), (9, 4, 1), {"num_ctas": 1}, (4, 2, 9)):
        compiled.packed_metadata = other
        with pytest.raises(RuntimeError, match=r"no cluster can be asked for: pip install 'triton>=3\.6,<3\.8'"):
            clusters.in_clusters(compiled, 8)
    plain, few = (4096, 4096, 4096), (16, 4096, 4096)
    assert {(c.split, c.turned, c.few) for c in matmul_tma.half_configs(False, *plain)} == {(1, False, False)}
    assert matmul_tma.half_configs(False, *few) == ()
    monkeypatch.setattr(clusters, "KNOWN", False)
    assert {(c.split, c.turned, c.few) for c in matmul_tma.half_configs(True, *plain)} == {(1, False, False)}
    assert matmul_tma.half_configs(True, *few) == ()


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
    from opwise.backends.triton_jit.softmax_cluster import ABOVE, Plan, form_of

    for row_bytes in (
        ABOVE[dtype] + 64,
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
            form = form_of(rows, row_bytes, dtype, 132)
            plan = Plan(row_bytes // size, dtype, form)
            words, last = row_bytes // 4, row_bytes // 4 - (form.blocks - 1) * plan.part
            assert 0 < last <= plan.part, "the last program has something to do, and no more than the others"
            assert plan.part % 32 == 0, "parts begin where cache lines do"
            assert plan.part <= (form.held + plan.staged) * plan.piece, "a part lies in its pieces"
            assert plan.full * plan.piece <= last, "what is not masked is there in every program"
            assert plan.full * plan.piece * form.blocks == words or plan.full < form.held + plan.staged
            assert form.shared_by * (plan.staged * plan.piece * 4 + 2048) <= 228 * 1024
            assert form.shared_by * form.warps * 32 * form.registers <= 65536
            assert form.wave(rows, 132) % form.blocks == 0


def test_few_rows_are_shared_by_more_programs_and_no_cluster_is_asked_of_a_triton_that_was_not_read(available, monkeypatch):
    from opwise.backends.triton_jit import softmax_cluster

    def blocks(rows, kib, dtype="float16"):
        form = softmax_cluster.form_of(rows, kib * 1024, dtype, 132)
        return form and form.blocks

    assert [blocks(rows, 128) for rows in (1, 28, 29, 57, 58, 115, 116, 5000)] == [16, 16, 8, 8, 4, 4, 2, 2]
    assert [blocks(rows, 512, "float32") for rows in (28, 29, 58)] == [16, 8, 4]
    assert [blocks(4096, kib) for kib in (64, 65, 1024, 1025)] == [None, 2, 16, None]
    assert [blocks(4096, kib, "float32") for kib in (96, 97, 128, 129)] == [None, 1, 1, 4]
    monkeypatch.setattr(softmax_cluster, "KNOWN", False)
    assert [blocks(rows, kib, "float32") for rows, kib in ((1, 128), (4096, 128), (4096, 256))] == [1, 1, None]
    assert blocks(4096, 128) is None


def test_clusters_begin_in_phases_where_a_second_wave_follows(available):
    from opwise.backends.triton_jit.softmax_cluster import Form

    assert Form(1, 16, 8, 2).wave(2048, 132) == 264
    assert Form(1, 16, 8, 2).wave(264, 132) == 0
    assert Form(8, 8, 8, 4).wave(512, 132) == 488, "of 495, in whole clusters"
    assert Form(8, 8, 8, 4).wave(122, 132) == 0, "two waves of small ones"
