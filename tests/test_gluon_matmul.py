"""The products that are written in Gluon, which no stand-in runs: what the compiler made of them, and what a launcher is told."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from triton_sass import LINE, compiled_once, disassembly, needs_triton

from opwise.backends.gemm.cost import Product
from opwise.backends.gemm.gpu import HOPPER, Machine

SPECIMENS = """
from opwise.backends.triton_jit.matmul import specimen_of
from opwise.backends.triton_jit.matmul.configurations import FFMA_CONFIGS, HALF_CONFIGS, TF32_CONFIGS
tf32 = [specimen_of(c, "tfloat32") for c in TF32_CONFIGS[1:]]
split = [specimen_of(c, "float16") for c in HALF_CONFIGS if c.split_k == 8]
pingpong = [specimen_of(c, "bfloat16") for c in HALF_CONFIGS if c.kernel == "pingpong"]
ffma = [specimen_of(c, "float32") for c in FFMA_CONFIGS[:1]]
specimens = (*tf32, *split, *pingpong, *ffma)
"""
PRODUCT = re.compile(r"R\d+, R(\d+), gdesc")

BLACKWELL = Machine(148, (10, 0), 227 * 1024)


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
    needs_triton()


@pytest.fixture(scope="module")
def disassembled(available):
    """By kernel. Of TF32's persistent tiles the one of two tensors of sums."""
    return disassembly(SPECIMENS)


@compiled_once
@pytest.mark.parametrize("kernel", ["persistent_kernel", "pipelined_kernel"])
def test_no_register_is_written_while_the_tensor_cores_read_it(disassembled, kernel):
    assert disassembled[kernel].count("HGMMA") >= 12, "four for the first step, and eight in the loop"
    assert hazards(disassembled[kernel]) == []


@compiled_once
@pytest.mark.parametrize("units", [2, 3])
def test_a_consumer_lets_the_other_begin_while_its_last_step_is_multiplied(disassembled, units):
    """And waits in its loop for the step before alone, of 64 rows a unit; a store is waited for before the next lies where it did."""
    sass = disassembled[f"pingpong_kernel{units}"]
    lines = [(name, rest) for _, name, rest in LINE.findall(sass)]
    assert not [name for name, _ in lines if name.startswith(("LDL", "STL"))], "nothing is spilled"
    seen = [
        f"{name.split('.')[0]} {rest.split()[-1] if name.startswith('WARPGROUP.DEPBAR') else ''}".replace("WARPGROUP", "wait").strip()
        for name, rest in lines
        if name.startswith(("HGMMA", "WARPGROUP.DEPBAR", "UTMASTG")) or (name.startswith("SYNCS.ARRIVE") and "A1T0" in name)
    ]
    step, store = ["HGMMA"] * 4 * units + [f"wait 0x{units}"], ["UTMASTG"] * 2 * units
    consumer = [*step, *step, "SYNCS", "SYNCS", "wait 0x0", "SYNCS", *store]
    assert seen == consumer * 2
    assert int(re.match(r"shared (\d+)", sass)[1]) <= 227 * 1024


@compiled_once
def test_multiply_adds_stand_in_the_order_in_which_they_were_written(disassembled):
    """Most keep an element of a or of b for the next. In the loop over steps, which has one over turns in it, the program meets once."""
    lines = [(int(address, 16), name, rest) for address, name, rest in LINE.findall(disassembled["ffma_kernel"])]
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


@compiled_once
def test_barriers_lie_where_they_are_waited_for(disassembled):
    """Behind three stages of 32 KiB: those of a, then those of b."""
    begun = [int(each, 16) for each in re.findall(r"SYNCS\.EXCH\.64 URZ, \[UR\d+\+(0x[0-9a-f]+)\]", disassembled["ffma_kernel"])]
    assert len(begun) >= 4, "some addresses are computed before"
    assert {each - 3 * 32768 for each in begun} <= {0, 8, 16, 32, 40, 48}
    assert max(begun) == 3 * 32768 + 48


@compiled_once
@pytest.mark.parametrize("kernel", ["split_kernel", "split_kernel_swap_ab"])
def test_the_first_copy_is_asked_for_early_and_nobody_meets_among_the_products(disassembled, kernel):
    lines = [(int(address, 16), name, rest) for address, name, rest in LINE.findall(disassembled[kernel])]
    copies = [address for address, name, _ in lines if name.startswith("UTMALDG")]
    assert copies[0] < 0xA00, "160 instructions, all of which are fetched before anything else is"
    assert len(copies) == 6, "a step's, in a loop before the products and in theirs"
    products = [at for at, (_, name, _) in enumerate(lines) if name.startswith("HGMMA")]
    end = max(at for at, (_, name, rest) in enumerate(lines) if name.startswith("WARPGROUP.DEPBAR") and "0x0" in rest)
    assert len(products) == 8, "128 of K in steps of 16"
    assert not any(name.startswith(("BAR", "UCGABAR")) for _, name, _ in lines[products[0] : end])


@compiled_once
@pytest.mark.parametrize("kernel", ["split_kernel", "split_kernel_swap_ab"])
def test_shared_memory_is_the_sums_once_the_products_are_done(disassembled, kernel):
    """What is a block's own goes to where the ring was, behind a barrier; the other sums are pushed, once the cluster has begun; all is
    read when what others push has come."""
    lines = [(name, rest) for _, name, rest in LINE.findall(disassembled[kernel])]
    end = max(at for at, (name, rest) in enumerate(lines) if name.startswith("WARPGROUP.DEPBAR") and "0x0" in rest)
    last = max(at for at, (name, _) in enumerate(lines) if name == "EXIT")
    kinds = ("ST", "LD", "SYNCS.PHASECHK", "SYNCS.ARRIVE", "ATOMS", "UTMA", "RED", "UCGABAR_WAIT")
    names = [name for name, _ in lines[end:last] if name.startswith(kinds) and not name.startswith("LDC")]  # those read constants
    assert next(name for name, _ in lines[end:] if name.startswith(("BAR", "ST"))).startswith("BAR")
    assert names[0] == "UCGABAR_WAIT"
    here = next(at for at, name in enumerate(names) if name.startswith("SYNCS.PHASECHK"))
    assert [name for name in names[1:here] if name != "STS.64"] == ["STAS.64"] * 8, "a thread's eight units"
    assert names[1:here].count("STS.64") == 8
    assert {name.split(".")[0] for name in names[here + 1 :]} == {"LDS", "STG"}
    assert sum(name.startswith("LDS") for name in names) == 8, "of as many blocks"


def test_a_tile_has_one_cluster(available):
    """More would find nothing but zeros past the edge, and the product right."""
    from opwise.backends.triton_jit.matmul import HALF_CONFIGS, split_k

    for config in (c for c in HALF_CONFIGS if c.split_k > 1 or c.swap_ab):
        m, n = config.BM if config.swap_ab else 3 * config.BM - 1, 5 * config.BN - 1
        assert math.prod(split_k.grid_of(config, m, n)) == config.tiles(m, n)


@pytest.mark.parametrize("swap_ab", [False, True])
def test_shared_memory_holds_the_pipeline_and_the_partial_sums(available, swap_ab):
    """Triton places what is larger first; with nothing between, the factors lie where copies and barriers count on them."""
    from opwise.backends.triton_jit.matmul import HALF_CONFIGS, split_k_ptx

    for config in (c for c in HALF_CONFIGS if (c.split_k > 1 or c.swap_ab) and c.swap_ab == swap_ab):
        across, threads = config.BM if swap_ab else config.BN, config.warps * 32
        words = split_k_ptx.words_of(across, config.split_k)
        partials = (config.split_k - 1) * split_k_ptx.units_of(across, config.split_k) * threads * words * 4
        assert across // 2 // words >= config.split_k, "every block owns a unit"
        assert config.shared_bytes(2) + 1024 + partials <= (227 * 1024 if config.ctas_per_sm == 1 else 113 * 1024)
        assert 16 * config.stages + 8 <= 1024


def test_a_launcher_is_told_of_clusters_in_its_own_words_or_not_at_all(available, monkeypatch):
    from triton.backends.nvidia import compiler, driver

    from opwise.backends.triton_jit.common import clusters
    from opwise.backends.triton_jit.matmul.configurations import offered

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
    large = Product(4096, 4096, 4096, "float16")
    for machine, known in ((BLACKWELL, True), (HOPPER, False)):
        monkeypatch.setattr(clusters, "KNOWN", known)
        found = offered(large, machine).values()
        assert {(c.split_k, c.swap_ab) for c in found} == {(1, False)}
        assert {c.kernel for c in found} == {"tma", "pointers"}
