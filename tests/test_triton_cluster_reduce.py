"""Products through pointers whose K a cluster's programs share: the choice, the exchange of sums, and what the compiler made of it."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from triton_sass import LINE, compiled_once, disassembly, needs_triton

from opwise.backends.gemm.cost import Product
from opwise.backends.gemm.gpu import HOPPER, Machine

SPECIMENS = """
from opwise.backends.triton_jit import matmul
every = {name: each for name, each in matmul.specimens("sm_90").items() if each.constants.get("WORDS") and each.constants["S"] > 1}
# Of each type, with a step asked for ahead and without, the last: the numbers are others alone.
specimens = {name: every[name] for name in {(name.partition(",")[0], "prefetch" in name): name for name in every}.values()}
"""
NAME = re.compile(r"(\w+), pointers_(\d+)x(\d+)x\d+/(\d+)/\d+(?:/prefetch)?/split_k(\d+)")
WIDTH = {"64": 2, "128": 4}


@pytest.fixture(scope="module")
def own():
    """The module of configurations."""
    needs_triton()
    from opwise.backends.triton_jit.matmul import configurations

    return configurations


@pytest.fixture(scope="module")
def disassembled(own):
    return disassembly(SPECIMENS)


def words(lines, kind):
    """Of 4 bytes that a thread moves by instructions of this kind."""
    return sum(WIDTH.get(name.rsplit(".", 1)[-1], 1) for name, _ in lines if name.split(".")[0] == kind)


@compiled_once
def test_sums_are_exchanged_between_two_meetings_of_the_cluster_and_nothing_else_is_in_shared_memory(disassembled):
    """Behind the last product: a barrier, the sums into the program's own memory; all have; a share is read from each program; stores."""
    assert {name.partition(",")[0] for name in disassembled} == {"float32", "tfloat32", "float16", "bfloat16"}
    for kernel, sass in disassembled.items():
        _, bm, bn, warps, split = NAME.fullmatch(kernel).groups()
        sums, threads, programs = int(bm) * int(bn), int(warps) * 32, int(split)
        lines = [(name, rest) for _, name, rest in LINE.findall(sass)]
        assert not [name for name, _ in lines if name.startswith(("LDL", "STL"))], f"{kernel}: nothing is spilled"
        arrived, met = ([at for at, (name, _) in enumerate(lines) if name == what] for what in ("UCGABAR_ARV", "UCGABAR_WAIT"))
        assert len(arrived) == len(met) == 2, kernel
        product = max(at for at, (name, _) in enumerate(lines) if name.startswith(("HMMA", "HGMMA", "FFMA")))
        assert product < arrived[0] < met[0] < arrived[1] < met[1], kernel
        fence = max(at for at in range(arrived[0]) if lines[at][0].startswith("BAR"))
        assert product < fence, f"{kernel}: others may read the last step's tiles"
        assert words(lines[fence : arrived[0]], "STS") == sums // threads, kernel
        assert words(lines[met[0] : arrived[1]], "LD") == max(sums // threads, programs), kernel
        assert not [name for name, _ in lines[met[0] :] if name.startswith(("STS", "LDS", "LDGSTS", "STSM", "LDSM"))], kernel
        assert not [name for name, _ in lines[: arrived[1]] if name.startswith("STG")], kernel


def test_reads_go_through_distributed_shared_memory(own):
    from opwise.backends.triton_jit.matmul.extra import cluster_reduce

    for split in own.SPLITS[1:]:
        for count in (1, 2, 4):
            text = gathering(cluster_reduce, split, count)
            assert (
                text.count("mapa.shared::cluster.u32") == text.count(f"ld.shared::cluster{f'.v{count}' if count > 1 else ''}.f32") == split
            )
            memory = np.random.default_rng(0).standard_normal((split, count)).astype(np.float32)
            expected = memory[0].copy()
            for of_one in memory[1:]:
                expected += of_one
            assert np.array_equal(played(text, memory), expected), "in the order of ranks"


def gathering(module, *given):
    function = module.gathering
    return getattr(function, "fn", function)(*given)


def played(text: str, memory: np.ndarray) -> np.ndarray:
    """What the PTX's loads and additions give: memory by rank and word."""
    registers: dict[str, np.float32] = {}
    results: dict[int, np.float32] = {}
    rank = -1
    for line in text.strip("{ }").split(";"):
        name, _, rest = line.strip().partition(" ")
        operands = re.findall(r"\$?\w+", rest)
        if name.startswith("mapa"):
            rank = int(operands[-1])
        elif name.startswith("ld."):
            registers |= dict(zip(operands[:-1], memory[rank], strict=True))
        elif name == "add.f32":
            registers[operands[0]] = registers[operands[1]] + registers[operands[2]]
        elif name == "mov.f32":
            results[int(operands[0].removeprefix("$"))] = registers[operands[1]]
    return np.array([results[w] for w in sorted(results)], np.float32)


class Cluster:
    """Plays the PTX of programs that run one after the other: the first time they leave their sums, the second time they read them."""

    def __init__(self) -> None:
        self.memory: dict[int, dict[int, np.float32]] = {}

    def asm(self, text, constraints, args, dtype, is_pure, pack):
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle, interpreter_builder

        program = interpreter_builder.grid_idx[0]

        def made(values):
            handle = TensorHandle(values, tl.float32)
            return tl.tensor(handle, tl.block_type(tl.float32, list(values.shape)))

        text = str(getattr(text, "value", text))
        if "st.shared" in text:
            total, at = (x.handle.data for x in args)
            assert len(set(at.flat)) == at.size, "no two sums in one place"
            self.memory[program] = dict(zip(at.flat, total.flat, strict=True))
        elif "ld.shared" in text:
            split = text.count("mapa")
            count = len(dtype)
            first = program // split * split
            found = []
            for at in args[0].handle.data.flat:
                assert at % (count * 4) == 0, "aligned"
                rows = [[self.memory.get(first + r, {}).get(at + 4 * w, np.float32(0)) for w in range(count)] for r in range(split)]
                found.append(played(text, np.array(rows, np.float32)))
            return tuple(made(np.array(column, np.float32)) for column in zip(*found, strict=True))
        return None


SHARED = ((1, (37, 70, 41)), (2, (33, 100, 40)), (4, (5, 129, 33)), (8, (40, 133, 20)))  # programs a tile; m, k, n
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize(
    ("split", "shape", "dtype", "prefetch"),
    [(*shared, dtype, (i + j) % 2 == 1) for i, shared in enumerate(SHARED) for j, dtype in enumerate(DTYPES)],
)
def test_programs_that_share_k_make_the_product(own, monkeypatch, split, shape, dtype, prefetch):
    """In Triton's interpreter, which runs one program after the other, and the PTX played."""
    import triton.language as tl

    from opwise.backends.triton_jit.matmul import Config, pointers
    from opwise.backends.triton_jit.matmul.extra import cluster_reduce

    (m, k, n), config = shape, Config(16, 32, 16, 1, 1, split_k=split, prefetch=prefetch)
    torch.manual_seed(0)
    a, b, out = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype), torch.full((m, n), float("nan")).to(dtype)
    fixed = cluster_reduce.constants(config, pointers.constants(config, n, k, "ieee"))
    cluster = Cluster()
    monkeypatch.setattr(tl, "inline_asm_elementwise", cluster.asm)
    for _ in range(2 if split > 1 else 1):
        cluster_reduce.cluster_reduce_kernel[(config.tiles(m, n) * split, 1, 1)](a, b, out, m, n, k, **fixed)
    near = 1e-4 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=near, atol=near)
    assert len(cluster.memory) == (config.tiles(m, n) * split if split > 1 else 0)
    assert max((max(of) for of in cluster.memory.values()), default=0) < max(config.exchanged_bytes, 1)


KINDS = {"16-bit": ("float16", 2000, 2000), "unaligned": ("float16", 2001, 2000), "tf32": ("tfloat32", 2000, 2000),
         "odd tf32": ("tfloat32", 2001, 2000), "ieee": ("float32", 2000, 2000)}  # kind -> dtype, K, N  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_each_program_has_a_step_and_room_for_its_sums(own, monkeypatch, kind):
    from opwise.backends.triton_jit.common import clusters

    dtype, k, n = KINDS[kind]
    product = Product(40, k % 2 + 304, n, dtype)
    assert own.kind_of(product) == kind
    found = own.through_pointers(product, HOPPER)
    assert {c.split_k for c in found} >= {1, 2, 4}
    for config in found:
        assert config.split_k == 1 or config.split_k * config.BK <= product.k
        assert config.split_k == 1 or 0 < config.exchanged_bytes <= own.FREE
        assert config.BM * config.BN % config.split_k == 0
    assert len({c.name for c in found}) == len(found)
    assert {c.split_k for c in own.through_pointers(product, Machine(148, (10, 0), 227 * 1024))} == {1}
    monkeypatch.setattr(clusters, "KNOWN", False)
    assert {c.split_k for c in own.through_pointers(product, HOPPER)} == {1}, "a launcher that was not read gets no clusters"


def test_the_interpreter_gets_one_program_a_tile(own, monkeypatch):
    from opwise.backends.triton_jit import matmul
    from opwise.backends.triton_jit.matmul import pointers

    asked = []
    monkeypatch.setattr(pointers, "built", lambda kernel, grid, *samples, **fixed: asked.append(kernel))
    m, k, n = 32, 8192, 32
    matmul.build(torch.empty(m, k), torch.empty(k, n), torch.empty(m, n))
    assert asked == [pointers.pointer_kernel]


def test_the_launcher_is_told_of_the_room_that_sums_take(own):
    from opwise.backends.triton_jit.common import clusters
    from opwise.backends.triton_jit.matmul.extra.cluster_reduce import with_room

    compiled = SimpleNamespace(packed_metadata=(4, 1, 9000), metadata=SimpleNamespace(num_warps=4, num_ctas=1, shared=9000))
    if not clusters.KNOWN:
        pytest.skip("no cluster is asked for in this Triton")
    for _ in range(2):
        with_room(compiled, 8, 17408)
        assert compiled.packed_metadata == (4, 8, 17408)
    with pytest.raises(RuntimeError, match="50000 bytes of shared memory wanted, Triton asks for 9000"):
        with_room(SimpleNamespace(**{**vars(compiled), "packed_metadata": (4, 1, 9000)}), 8, 50000)


@pytest.mark.parametrize("kind", KINDS)
def test_extra_is_switched_off_as_one(own, monkeypatch, kind):
    dtype, k, n = KINDS[kind]
    for switch in ("", "off"):
        monkeypatch.setenv("OPWISE_EXTRA", switch)
        found = [c for c in own.offered(Product(40, k, n, dtype), HOPPER).values() if c.kernel == "pointers"]
        assert found
        assert any(c.split_k > 1 or c.prefetch for c in found) == (switch == "")
