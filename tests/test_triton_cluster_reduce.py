"""Products through pointers whose K a cluster's programs share: the choice, the exchange of sums, and what the compiler made of it."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from triton_sass import LINE, disassembly, needs_triton

MULTIPROCESSORS = 132
SPECIMENS = """
from opwise.backends.triton_jit import matmul
specimens = {name: each for name, each in matmul.specimens("sm_90").items() if each.constants.get("WORDS") and each.constants["S"] > 1}
"""
NAME = re.compile(r"(\w+), (\d+)x(\d+)x\d+/(\d+)/\d+(?:/prefetch)?/split_k(\d+)")
WIDTH = {"64": 2, "128": 4}


@pytest.fixture(scope="module")
def cost():
    needs_triton()
    from opwise.backends.triton_jit.matmul import cost

    return cost


@pytest.fixture(scope="module")
def disassembled(cost):
    return disassembly(SPECIMENS)


def words(lines, kind):
    """Of 4 bytes that a thread moves by instructions of this kind."""
    return sum(WIDTH.get(name.rsplit(".", 1)[-1], 1) for name, _ in lines if name.split(".")[0] == kind)


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


def test_reads_go_through_distributed_shared_memory(cost):
    from opwise.backends.triton_jit.matmul.extra import cluster_reduce, tiles

    for split in tiles.SPLITS[1:]:
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


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize(("split", "shape"), [(1, (37, 70, 41)), (2, (33, 100, 40)), (4, (5, 129, 33)), (8, (40, 133, 20))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_programs_that_share_k_make_the_product(cost, monkeypatch, split, shape, dtype, prefetch):
    """In Triton's interpreter, which runs one program after the other, and the PTX played."""
    import triton.language as tl

    from opwise.backends.triton_jit.matmul import Config, pointers
    from opwise.backends.triton_jit.matmul.extra import cluster_reduce, tiles

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
    assert max((max(of) for of in cluster.memory.values()), default=0) < max(tiles.exchanged_bytes(config), 1)


LONG = [(32, 8192, 32), (128, 16384, 128), (37, 4501, 73)]
KINDS = {"16-bit": torch.float16, "unaligned": torch.float16, **dict.fromkeys(("tf32", "odd tf32", "ieee"), torch.float32)}


def chosen(cost, monkeypatch, kind, shape):
    m, k, n = shape
    monkeypatch.setattr(cost, "processors", lambda device: MULTIPROCESSORS)
    return cost.quickest_through_pointers(kind, m, n, k, torch.empty(1, dtype=KINDS[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_few_tiles_of_a_long_k_are_shared_and_many_are_not(cost, monkeypatch, kind):
    for shape in LONG:
        config = chosen(cost, monkeypatch, kind, shape)
        assert config.split_k >= 8, shape
        whole = max(c.tiles(shape[0], shape[2]) for c in cost.candidates(kind, 1, 2**18, 2))
        assert config.tiles(shape[0], shape[2]) * config.split_k > min(whole, MULTIPROCESSORS // 8), shape
    for shape in ((4096, 4096, 4096), (4001, 4001, 4001)):
        config = chosen(cost, monkeypatch, kind, shape)
        assert config.split_k <= 2, "for the last wave at most"
        assert config.BM * config.BN >= 4096
    assert chosen(cost, monkeypatch, kind, (5, 7, 3)).split_k == 1, "less than a step for each"


@pytest.mark.parametrize("kind", KINDS)
def test_each_program_has_a_step_and_room_for_its_sums(cost, monkeypatch, kind):
    from opwise.backends.triton_jit.common import clusters
    from opwise.backends.triton_jit.matmul.extra import tiles

    found = cost.candidates(kind, 300, 227 * 1024, 4)
    assert {c.split_k for c in found} >= {1, 2, 4}
    for config in found:
        assert config.split_k == 1 or config.split_k * config.BK <= 300
        assert config.split_k == 1 or 0 < tiles.exchanged_bytes(config) <= tiles.FREE
        assert config.BM * config.BN % config.split_k == 0
    assert len({c.name for c in found}) == len(found)
    monkeypatch.setattr(clusters, "KNOWN", False)
    assert {c.split_k for c in cost.candidates(kind, 9000, 227 * 1024, 4)} == {1}, "a launcher that was not read gets no clusters"


def test_programs_side_by_side_take_longer_once_they_ask_for_more_than_there_is(cost):
    from opwise.backends.triton_jit.matmul import Config

    config = Config(64, 64, 32, 4, 3, 2, 1.0, 10.0, load=0.75)

    def us(tiles):
        return cost.pointers_us(config, 64 * tiles, 64, 1000, MULTIPROCESSORS)

    assert us(1) == us(132) == pytest.approx(11.0)
    assert us(133) == us(264) == pytest.approx(1 + 15.0), "two of three quarters"
    assert us(265) == pytest.approx(2 + 22.5), "and a second wave"


def test_other_gpus_and_the_interpreter_get_one_program_a_tile(cost, monkeypatch):
    from opwise.backends.triton_jit import matmul
    from opwise.backends.triton_jit.matmul import pointers

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: SimpleNamespace())
    assert not cost.model_holds(torch.device("cpu"))
    for interpreting in (False, True):
        monkeypatch.setattr(cost, "INTERPRETING", interpreting)
        for capability in ((8, 0), (8, 9), (9, 0), (10, 0), (12, 0)):
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
            assert cost.model_holds(torch.device("cuda")) == (capability == (9, 0) and not interpreting)
    asked = []
    monkeypatch.setattr(pointers, "built", lambda kernel, grid, *samples, **fixed: asked.append((kernel, grid)))
    m, k, n = 32, 8192, 32
    matmul.build(torch.empty(m, k), torch.empty(k, n), torch.empty(m, n))
    assert asked == [(pointers.pointer_kernel, (1, 1, 1))]


def test_tf32_of_few_tiles_leaves_tensor_descriptors_unless_tuned_to_them(cost, monkeypatch):
    from opwise.backends.triton_jit import matmul
    from opwise.backends.tuned import Choices

    monkeypatch.setattr(cost, "processors", lambda device: MULTIPROCESSORS)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))

    def taken(m, k, n):
        config = matmul.through_maps(*(torch.empty(shape, device="meta") for shape in ((m, k), (k, n))), "tf32")
        return config and config.name

    assert taken(128, 16384, 128) is None
    assert taken(1024, 8192, 1024) is not None
    assert taken(4096, 4096, 4096) is not None
    name = matmul.TF32_CONFIGS[-1].name
    forced = Choices(forced=name)
    monkeypatch.setattr(cost, "look", lambda table, device: forced)
    assert taken(128, 16384, 128) == name


def test_the_launcher_is_told_of_the_room_that_sums_take(cost):
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


def test_extra_is_switched_off_as_one(cost, monkeypatch):
    """Each product then gets a tile of the main path."""
    monkeypatch.setattr(cost, "processors", lambda device: MULTIPROCESSORS)
    monkeypatch.setattr(cost, "model_holds", lambda device: True)
    for switch in ("", "off"):
        monkeypatch.setenv("OPWISE_EXTRA", switch)
        for kind, (m, k, n) in ((kind, shape) for kind in KINDS for shape in LONG):
            config = cost.through_pointers(kind, m, n, k, torch.empty(1, dtype=KINDS[kind]))
            assert (config.split_k > 1 or config.prefetch) == (switch == "")
