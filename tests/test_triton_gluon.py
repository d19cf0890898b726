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
from opwise.backends.triton_jit import matmul_ahead, matmul_fma, matmul_split, matmul_tma
from opwise.backends.triton_jit.specimen import compiled
tf32 = [matmul_tma.tf32_specimen(c) for c in matmul_tma.TF32_CONFIGS[1:]]
split = [matmul_split.specimen(c, "float16") for c in matmul_tma.HALF_CONFIGS if c.split == 8]
ahead = [matmul_ahead.specimen(c, "bfloat16") for c in matmul_tma.HALF_CONFIGS if c.ahead]
fma = [matmul_fma.specimen(c) for c in matmul_tma.FMA_CONFIGS[:1]]
for specimen in (*tf32, *split, *ahead, *fma):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        binary.write(compiled(specimen, "sm_90").asm["cubin"])
        binary.flush()
        print(f"KERNEL {specimen.kernel.__name__}", flush=True)
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


@pytest.mark.parametrize(("kernel", "groups"), [("ahead_kernel", 1), ("narrow_kernel", 2)])
def test_a_step_is_begun_before_the_last_one_is_done(disassembled, kernel, groups):
    """In the loop only the groups of the step before are waited for, behind it all: ptxas may wait for each wgmma instead."""
    waits = [int(each, 16) for each in re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, (0x\d+)", disassembled[kernel])]
    assert disassembled[kernel].count("HGMMA") == 4 * groups, "64 of K in steps of 16"
    assert waits == [groups, 0]


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


def test_shared_memory_is_the_sums_once_the_cluster_has_met(disassembled):
    """From the last wait for products to the first meeting it is written by the sums alone, then only read, until all have met again."""
    lines = [(name, rest) for _, name, rest in LINE.findall(disassembled["split_kernel"])]
    end = max(at for at, (name, rest) in enumerate(lines) if name.startswith("WARPGROUP.DEPBAR") and "0x0" in rest)
    last = next(at for at, (name, _) in enumerate(lines) if at > end and name == "EXIT")
    kinds = ("ST", "LD", "SYNCS", "ATOMS", "UTMA", "RED", "UCGABAR_WAIT")
    names = [name for name, _ in lines[end:last] if name.startswith(kinds) and not name.startswith("LDC")]  # those read constants
    met = [at for at, name in enumerate(names) if name == "UCGABAR_WAIT"]
    assert len(met) == 2
    assert set(names[: met[0]]) == {"STS.128"}
    assert set(names[met[0] + 1 : met[1]]) == {"LD.E.128"}
    assert all(name.startswith("STG") for name in names[met[1] + 1 :])


def test_a_launcher_is_told_of_clusters_in_its_own_words_or_not_at_all(available, monkeypatch):
    from triton.backends.nvidia import compiler, driver

    from opwise.backends.triton_jit import matmul_split, matmul_tma

    told = compiler.CUDABackend.pack_metadata(None, SimpleNamespace(num_warps=4, num_ctas=1, shared=9, cluster_dims=(1, 1, 1)))
    folder = Path(driver.__file__).parent
    launcher = "".join(path.read_text() for path in (folder / "driver.py", folder / "driver.c"))
    compiled = SimpleNamespace(packed_metadata=told, metadata=SimpleNamespace(num_warps=4, num_ctas=1, shared=9))
    if matmul_split.KNOWN:
        assert all(each in launcher for each in ("gridDimX = gridX * num_ctas", "clusterDim.x = num_ctas"))
        assert re.search(r"&num_warps,\s*&num_ctas,\s*&shared_memory", launcher)
        for _ in range(2):  # a kernel is found compiled by every product that it fits
            matmul_split.in_clusters(compiled, 8)
            assert compiled.packed_metadata == (4, 8, 9)
    for other in ((4, 1, 9, 1), (9, 4, 1), {"num_ctas": 1}, (4, 2, 9)):
        compiled.packed_metadata = other
        with pytest.raises(RuntimeError, match=r"no cluster can be asked for: pip install 'triton>=3\.6,<3\.8'"):
            matmul_split.in_clusters(compiled, 8)
    assert {(c.split, c.ahead) for c in matmul_tma.half_configs(hopper=False)} == {(1, False)}
    monkeypatch.setattr(matmul_split, "KNOWN", False)
    assert {c.split for c in matmul_tma.half_configs(hopper=True)} == {1}


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

    for columns in (131088, 262160, 300000, 524288, 786448, 1048560, 1048576, 1048592, 1500000, 2**21):
        plan = planned(columns, dtype)
        if plan is None:
            assert (dtype, columns <= 262144) == ("float32", True), "float32 alone has shorter rows, which are as quick in registers"
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
    assert planned(2**21 + 16, "bfloat16") is None
    assert planned(2**20, "bfloat16").groups(256, 264) == 4
    assert planned(2**20, "float32").groups(256, 264) == 1
    assert planned(262144, "float16").groups(60, 264) == 15, "four full turns, where of 16 groups the last would have 12 of 16 rows"
    assert planned(262144, "float16").groups(512, 264) == 16
    assert planned(1_100_000, "float32").groups(256, 264) == 0, "135 parts: half of the programs would stand idle"
    assert planned(2**20, "bfloat16").groups(256, 60) == 0, "64 parts wait for each other, and 60 run at once"


def test_rows_begin_in_phases_where_that_was_measured_to_gain(available, monkeypatch):
    """Whole rows of 32768 float32, 15 a multiprocessor and more, on Hopper."""
    from opwise.backends.triton_jit import softmax

    def row_of(rows, columns=32768, element_size=4, device="cuda"):
        size = {"element_size": lambda: element_size, "shape": (rows, columns)}
        return SimpleNamespace(device=torch.device(device), **size)

    monkeypatch.setattr(softmax, "INTERPRETING", False)
    monkeypatch.setattr(softmax, "processors", lambda device: 132)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert softmax.staggered(row_of(2048))
    assert not softmax.staggered(row_of(1979))
    assert not any(softmax.staggered(row_of(2048, *other)) for other in ((32752,), (32768, 2), (32768, 4, "cpu")))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert not softmax.staggered(row_of(2048))
