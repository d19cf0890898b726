"""Facts read off machine code, and the command that shows them: of kernels whose content is known, and of every backend's square."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from invoking import invoke, skip_if_missing
from kernel_facts import CUDA_CPP, Seen, complaints, stale
from support import or_skip

from opwise.backends.cuda_src.matmul.kernels import portable
from opwise.commands import inspect as command
from opwise.inspecting import compilers, tools
from opwise.inspecting.classes import class_of, count, width_of
from opwise.inspecting.compilers import ARCHITECTURES, COMPILERS
from opwise.inspecting.facts import Facts, facts
from opwise.inspecting.rows import MOST_SHARED, variants_of_kernel
from opwise.inspecting.tools import ToolMissing

# One load of 16 bytes, one store of 4, an FMA, an exponential, a sum in double, an array on the stack, 64 bytes of shared memory.
KNOWN = """
.version 6.4
.target sm_75
.address_size 64
.visible .entry known(.param .u64 from, .param .u64 to)
{
    .reg .f32 %f<9>; .reg .f64 %d<4>; .reg .b64 %a<5>; .reg .b32 %r<4>;
    .shared .align 4 .b8 tile[64];
    .local .align 4 .b8 array[64];
    ld.param.u64 %a0, [from]; ld.param.u64 %a1, [to];
    ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%a0];
    fma.rn.f32 %f4, %f0, %f1, %f2;
    ex2.approx.ftz.f32 %f5, %f4;
    mov.u32 %r0, %tid.x;
    shl.b32 %r1, %r0, 2;
    mov.u32 %r2, tile;
    add.u32 %r2, %r2, %r1;
    st.shared.f32 [%r2], %f5;
    bar.sync 0;
    ld.shared.f32 %f5, [%r2];
    mov.u64 %a2, array;
    cvt.u64.u32 %a3, %r1;
    add.u64 %a4, %a2, %a3;
    st.local.f32 [array], %f4; st.local.f32 [%a4], %f5;
    mov.u32 %r3, %ctaid.x;
    shl.b32 %r3, %r3, 2;
    cvt.u64.u32 %a3, %r3;
    add.u64 %a4, %a2, %a3;
    ld.local.f32 %f6, [%a4];
    cvt.f64.f32 %d0, %f6; cvt.f64.f32 %d1, %f3;
    add.rn.f64 %d2, %d0, %d1;
    cvt.rn.f32.f64 %f7, %d2;
    st.global.f32 [%a1], %f7;
    ret;
}
"""


pytestmark = pytest.mark.xdist_group("inspect")  # what one has compiled the others show


def known(arch: str, folder: Path) -> Facts:
    (folder / "known.ptx").write_text(KNOWN)
    with or_skip(ToolMissing):
        tools.output("ptxas", f"--gpu-name={arch}", folder / "known.ptx", "-o", folder / "known.cubin")
        (found,) = facts([(folder / "known.cubin").read_bytes()], arch)
    return found["known"]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_known_kernel_is_read_right(arch: str, tmp_path: Path) -> None:
    found = known(arch, tmp_path)
    assert found.accesses["global load"] == {16: 1}
    assert found.accesses["global store"] == {4: 1}
    assert sum(found.accesses["shared store"].values()) == 1
    assert (found.classes["fma"], found.classes["special"]) == (1, 1)
    assert found.double == 4, "two conversions to double, a sum, a conversion back"
    assert found.stack_bytes == 64
    assert found.local == 3, "two stores and a load"
    reserved = {"sm_75": 0, "sm_80": 0, "sm_86": 0, "sm_89": 0}.get(arch, 1024)  # bytes a block, by the system, from sm_90 on
    assert found.shared_bytes == 64 + reserved
    assert 3 <= found.registers <= 32
    assert sum(found.classes.values()) == found.instructions


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [("HMMA.16816.F32", "tensor"), ("HGMMA.64", "tensor"), ("UTCHMMA", "tensor"), ("HFMA2.MMA", "half"), ("FFMA.FTZ", "fma"),
     ("FFMA2", "fma"), ("FADD", "float"), ("MUFU.EX2", "special"), ("MUFU.RCP64H", "double"), ("DFMA", "double"), ("DMMA.884", "double"),
     ("I2F.F64", "double"), ("F2F.F64.F32", "double"), ("I2F.U64.RP", "convert"), ("LDG.E.128.CONSTANT", "load"), ("LDC.64", "constant"),
     ("LDCU.64", "constant"), ("ULDC", "constant"), ("LDGSTS.E.BYPASS.128", "async"), ("UTMALDG.2D", "async"), ("STG.E", "store"),
     ("BAR.SYNC.DEFER_BLOCKING", "barrier"), ("BRA.U", "control"), ("IMAD.WIDE", "integer"), ("DEPBAR.LE", "barrier")],
)  # fmt: skip
def test_opcodes_have_their_class(opcode: str, expected: str) -> None:
    assert class_of(opcode) == expected


@pytest.mark.parametrize(
    ("opcode", "width"),
    [("LDG.E", 4), ("LDG.E.U16.CONSTANT", 2), ("LDG.E.LTC128B.64", 8), ("LDG.E.128", 16), ("LDG.E.ENL2.256", 32), ("LDSM.16.M88.4", 16),
     ("LDSM.16.MT88.2", 8), ("LDSM.16.M88", 4), ("STG.E.U8", 1)],
)  # fmt: skip
def test_accesses_have_their_width(opcode: str, width: int) -> None:
    assert width_of(opcode) == width
    assert sum(count([opcode] * 3).accesses.popitem()[1].values()) == 3


@cache
def rows() -> list[dict[str, Any]]:
    result = invoke("inspect", "square", "--dtype", "float32", "--variants", "--arch", "sm_75", "--arch", "sm_90", "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def of(backend: str, arch: str) -> list[dict[str, Any]]:
    mine = [row for row in rows() if row["implementation"].startswith(f"{backend}/") and row["arch"] == arch]
    assert mine, f"{backend} has rows"
    if all("opwise backends" in row["reason"] or "install" in row["reason"] for row in mine):
        pytest.skip(mine[0]["reason"])
    return mine


@pytest.mark.slow
@pytest.mark.parametrize("backend", COMPILERS)
def test_the_command_tells_of_each_backend(backend: str) -> None:
    mine = of(backend, "sm_90")
    assert {row["status"] for row in mine} == {"ok"}, mine
    assert {row["dtype"] for row in mine} == {"float32"}
    for row in mine:
        assert row["registers"] >= 8
        assert (row["spilled_bytes"], row["stack_bytes"], row["classes"].get("double", 0), row["classes"].get("tensor", 0)) == (0, 0, 0, 0)
        assert sum(row["classes"].values()) == row["instructions"]
    fast = [row for row in mine if ":" not in row["implementation"]]
    assert any("16" in row["accesses"]["global load"] and "16" in row["accesses"]["global store"] for row in fast), "16 bytes at once"
    if backend != "triton_jit":
        assert any(set(row["accesses"]["global load"]) == {"4"} for row in mine), "one element at a time, off 16 bytes or as `plain`"


@pytest.mark.slow
@pytest.mark.parametrize("backend", COMPILERS)
def test_what_an_architecture_cannot_compile_is_told_with_its_reason(backend: str) -> None:
    mine = of(backend, "sm_75")
    absent = [row for row in mine if row["status"] != "ok"]
    assert all(row["status"] == "n/a" and row["reason"] and row["registers"] is None for row in absent)
    assert bool(absent) == (backend in CUDA_CPP), "their unit holds 16-bit kernels too, whose conversions sm_75 lacks"
    assert all("sm_80" in row["reason"] for row in absent)


def test_a_variant_for_any_gpu_runs_the_unnamed_one_s_kernels_but_hoppers_own() -> None:
    names = ("", "textbook", "mma", "pipeline", "tma", "persistent", "invariant")
    for kernel, expected in {
        "matmul_extra_float16_skinny_n_8_h2_t32_v16": ["", "mma"],
        "matmul_float32_gemv_columns_1_t32_v4": ["", "mma"],
        "matmul_cluster_tfloat32_mma_16x32_v16_s2": [""],
        "matmul_unaligned_tma_float16_64_s1": [""],
        "matmul_ffma_float32_aligned_64x64_w4_stream_k": [""],
        "matmul_textbook_float32": ["textbook"],
        "matmul_ladder_tma_float16": ["tma"],
        "matmul_ffma_float32_tma_128x128_8x16": ["", "invariant"],
        "matmul_wgmma_float16_128x256": ["", "persistent", "invariant"],
        "matmul_wgmma_float16_64x64_s8": [""],
        "matmul_float32_simt_64x64_v16": ["", "mma", "invariant"],
    }.items():
        assert variants_of_kernel(kernel, "matmul", names) == expected


def test_before_sm_80_products_without_tensor_cores_are_told_of_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {config.kernel(kind) for config in portable.SIMT for kind in config.kinds}
    whole |= {"matmul_textbook_float32", "matmul_float16_gemv_columns_1_t32_v16"}
    hollow = {config.kernel(kind) for config in portable.MMA for kind in config.kinds}
    whole.add("matmul_extra_float32_small_gemm_16x32x32_v4")
    hollow.add("matmul_extra_float16_skinny_n_8_h2_t32_v16")
    made = dict.fromkeys(whole | hollow, "9 registers, 0 bytes spilled")
    monkeypatch.setattr("opwise.backends.cuda_src.sources.resource_facts", lambda log, cubin: made)
    for arch, told in (("sm_75", whole), ("sm_80", whole | hollow)):
        assert {found.kernel for found in compilers._of_unit(b"", "", "", arch) if not found.reason} == told


@pytest.mark.slow
@pytest.mark.parametrize(("option", "expected"), [("--sass", ("LDG.E.128", "STG.E.128")), ("--ptx", ("ld.global", "st.global", ".entry"))])
def test_the_listing_has_the_source_beside(option: str, expected: tuple[str, ...]) -> None:
    result = invoke("inspect", "square", "--dtype", "float32", option)
    assert result.exit_code == 0, result.output
    sources = {
        "torch_inline": "elementwise.cuh:",
        "cupy_raw": "elementwise.cuh:",
        "numba_cuda": "elementwise.py:",
        "triton_jit": "square.py:",
    }
    told = {row["implementation"].split("/")[0] for row in rows() if row["status"] == "ok" and row["arch"] == "sm_90"}
    assert told, "a backend compiles here"
    for backend in told:
        text = result.stdout[result.stdout.index(f"{backend}/square  ") :]
        others = [at for other in sources if other != backend and (at := text.find(f"{other}/square  ")) > 0]
        text = text[: min(others, default=len(text))]
        assert sources[backend] in text, f"{backend} names its source"
        assert all(part in text for part in expected), f"{backend} lists its instructions"


@pytest.mark.slow
def test_architectures_stand_side_by_side() -> None:
    result = invoke("inspect", "triton_jit/square", "--dtype", "float32", "--kernel", "float32", "--arch", "sm_80", "--arch", "sm_90")
    assert result.exit_code == 0, result.output
    skip_if_missing(result.output)
    assert "sm_80" in result.output
    assert "sm_90" in result.output
    assert "1x16B" in result.output or "2x16B" in result.output or "4x16B" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nonsense/softmax",), ["'nonsense'", "triton_jit", "torch_inline"]),
        (("nonsense",), ["'nonsense'", "softmax", "triton_jit"]),
        (("triton_jit/nonsense",), ["'nonsense'", "softmax", "matmul"]),
        (("triton_jit/softmax", "--arch", "sm_70"), ["'sm_70'", *ARCHITECTURES, "all"]),
        (("triton_jit/softmax", "--dtype", "float64"), ["'float64'", "bfloat16", "tfloat32"]),
        (("triton_jit/softmax", "--sass", "--json"), ["--sass", "--json", "one"]),
    ],
)
def test_an_unknown_name_lists_what_is_taken(arguments: tuple[str, ...], said: list[str]) -> None:
    result = invoke("inspect", *arguments)
    assert result.exit_code == 2
    assert all(text in result.output for text in said), result.output


@pytest.mark.slow
def test_a_variant_and_a_kernel_that_are_not_there_are_refused() -> None:
    result = invoke("inspect", "triton_jit/square:nonsense", "--dtype", "float32")
    assert result.exit_code == 2
    assert "'nonsense'" in result.output
    assert "(unnamed)" in result.output
    result = invoke("inspect", "triton_jit/square", "--dtype", "float32", "--kernel", "nonsense")
    assert result.exit_code == 2
    assert "'nonsense'" in result.output


@pytest.mark.slow
def test_a_kernel_whose_instructions_its_source_leaves_out_is_no_kernel() -> None:
    result = invoke("inspect", "cupy_raw/matmul", "--dtype", "tfloat32", "--arch", "sm_75", "--json")
    assert result.exit_code == 0, result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    skip_if_missing("\n".join(row["reason"] for row in found))
    assert len(found) > 3
    assert {row["status"] for row in found} == {"n/a"}, "mma of TF32 is of sm_80"
    assert all("sm_80" in row["reason"] for row in found)


def test_torch_eager_says_that_it_brings_no_kernels() -> None:
    result = invoke("inspect", "torch_eager/softmax")
    assert result.exit_code == 0
    assert "no kernels of its own" in " ".join(result.output.split())


def test_a_missing_disassembler_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_candidates", lambda name: iter(()))
    tools.tool.cache_clear()
    try:
        with pytest.raises(ToolMissing, match=r"nvdisasm was not found: pip install triton.*CUDA toolkit") as caught:
            tools.tool("nvdisasm")
    finally:
        tools.tool.cache_clear()

    class Blind:
        def __init__(self, *_: object, **__: object) -> None: ...

        def ask(self, *_: object) -> str:
            return str(caught.value)

        def kill(self) -> None: ...

    monkeypatch.setattr(command, "Worker", Blind)
    result = invoke("inspect", "triton_jit/softmax")
    assert result.exit_code == 1
    assert result.output.strip().splitlines()[-1].startswith("opwise: nvdisasm was not found")


def test_a_blemish_must_be_listed_and_a_listed_one_must_be_there() -> None:
    clean, spilling, double = Seen("gelu_float16_v16", 0, 0, 0), Seen("gelu_float16_v16", 0, 2, 0), Seen("gelu_float16_v16", 0, 0, 1)
    assert not complaints("cupy_raw", "sm_90", [clean])
    assert "spill" in complaints("cupy_raw", "sm_90", [spilling])[0]
    assert "double" in complaints("cupy_raw", "sm_90", [double])[0]
    assert not complaints("cupy_raw", "sm_90", [Seen("gelu_float32_textbook", 0, 0, 47)])
    assert "no longer" in complaints("cupy_raw", "sm_90", [Seen("gelu_float32_textbook", 0, 0, 0)])[0]
    elsewhere = "sm_103"  # for which nothing is listed but what is so of every architecture
    assert stale("cupy_raw", elsewhere, [clean.kernel])
    assert not stale("cupy_raw", elsewhere, ["gelu_float32_textbook"])


def test_every_architecture_has_its_shared_memory() -> None:
    assert set(MOST_SHARED) == set(ARCHITECTURES)
