"""Every kernel compiles, GPU or not, and none spills or computes in double where it should not: each backend's `compile_only(arch)`, in a
process of its own, and the cubins that it made. compile_child.py says which kernel is compiled for which architecture."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from compile_child import ARCHITECTURES, UNAVAILABLE, chosen, form, units_of
from kernel_facts import CUDA_CPP, MOST_REGISTERS, Seen, complaints, stale
from test_softmax_plan import COLUMNS, ROWS

from opwise.backends import OURS
from opwise.backends.cuda_src import plan, softmax
from opwise.backends.cuda_src.sources import UNITS_OF_ONE, units
from opwise.inspecting.rows import variants_of_kernel
from opwise.ops import OPS
from opwise.ops.spec import DTYPES

BY_NVRTC = ("sm_80", "sm_100")  # nvcc need not compile there what NVRTC compiles of the same sources
TOGETHER = ("numba_cuda",)  # compiled for all of them in one process
CHILD = Path(__file__).with_name("compile_child.py")
SOURCE = Path(__file__).resolve().parents[1] / "src"
DTYPE = re.compile("|".join(DTYPES))
FACTS = re.compile(r"(\d+) registers, (\d+) bytes spilled, (\d+) instructions")


@cache
def told(backend: str, *archs: str) -> dict[str, dict[str, Any]]:
    """Of each architecture what compile_child.told says of it."""
    clean = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    clean |= {"PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]), "PYTHONWARNINGS": "default"}
    clean["NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING"] = "1"  # Numba words and colours an error for each overload that does not fit
    command = [sys.executable, str(CHILD), backend, "" if nvrtc_works() and shutil.which("nvcc") else "alone", *archs]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, capture_output=True, text=True, timeout=880, env=clean, cwd=folder, check=False)
    if done.returncode == UNAVAILABLE:
        nvcc = shutil.which("nvcc") or "no nvcc on PATH"
        pytest.skip(f"{backend}: {done.stdout.strip()} ({nvcc})")
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(item for line in done.stdout.splitlines() if line.startswith('{"sm_') for item in json.loads(line).items())


def nvrtc_works() -> bool:
    with contextlib.suppress(Exception):  # a library that it loads may be missing
        return bool(importlib.import_module("cupy.cuda").nvrtc.getVersion())
    return False


def compiling_backends() -> list[str]:
    return [name for name, module in OURS.items() if hasattr(importlib.import_module(module), "compile_only")]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("backend", "arch"), [
    pytest.param(backend, arch, marks=pytest.mark.xdist_group(f"compile {backend} {'' if backend in TOGETHER else arch}"))
    for backend in compiling_backends() for arch in ARCHITECTURES
])  # fmt: skip
def test_kernels_compile_without_spills_or_doubles(backend: str, arch: str) -> None:
    """One test, because compiling takes most of its time."""
    if backend == "torch_inline" and arch in BY_NVRTC and nvrtc_works():
        pytest.skip(f"cupy_raw compiles the same sources for {arch}")
    answer = told(backend, *ARCHITECTURES)[arch] if backend in TOGETHER else told(backend, arch)[arch]
    report, names = answer["FOUND"], answer["NAMES"]
    assert set(report) <= set(names)
    assert all(any(op in kernel for kernel in report) for op in OPS), f"kernels of each op are compiled: {sorted(report)}"
    facts = [FACTS.fullmatch(line) for line in report.values()]
    assert all(facts), f"every compiler tells what it made: {report}"
    assert all(1 <= int(f[1]) <= 255 and int(f[3]) >= 8 for f in facts if f), report
    assert all(kernel.split("_")[0].split(":")[0] in OPS and DTYPE.search(kernel) for kernel in names), "its op and dtype are in its name"
    if backend in CUDA_CPP:
        assert planned_softmax(arch) <= set(names), f"planned, but not there: {sorted(planned_softmax(arch) - set(names))}"
        registers = {kernel: int(f[1]) for kernel, f in zip(report, facts, strict=True) if f}
        assert arch != "sm_90" or all(registers[kernel] <= most for kernel, most in MOST_REGISTERS.items()), registers
    if isinstance(answer["FACTS"], str):
        pytest.skip(f"all compile, none is disassembled: {answer['FACTS']}")
    nothing_spills_or_computes_in_double(backend, arch, report, answer["FACTS"], names)
    if arch == "sm_90":
        inspect_shows_what_runs(backend, report, answer["SHOWN"], answer["VARIANTS"]["square"])
        every_variant_has_kernels(backend, names, answer["VARIANTS"])


def test_every_form_of_a_kernel_is_compiled_for_one_architecture() -> None:
    any_gpu = (
        "float16, 64x32",
        "bfloat16, 64x32",
        "float16, 32x16",
        "bfloat16, 32x16",
        "float32",
        "float32, wide offsets",
        "bfloat16, split_k4",
    )
    names = {"sm_80": (*any_gpu, "float32 of the first"), "sm_90": (*any_gpu, "float32 of Hopper"), "sm_100": (*any_gpu, "float32 new")}
    found = {arch: chosen("triton_jit", "mean", arch, names.__getitem__) for arch in ARCHITECTURES}
    every = set().union(*names.values())
    assert set().union(*found.values()) == every - {"float16, 32x16", "bfloat16, 64x32"}, "another size of each type"
    assert all(set(found[arch]) < set(names[arch]) for arch in ARCHITECTURES), "of none all"
    assert form("matmul_float16_128x64_v16_s1") == form("matmul_bfloat16_64x256_v16_s1") == "matmul_float16_nxn_v16_s1"
    assert (
        len({form(f"matmul_{name}") for name in ("float16_64_v16_s2", "float16_64_v2_s2", "float16_64_v16_s1", "tfloat32_64_v16_s2")}) == 4
    )
    for alone, pairs in ((True, [("cupy_raw", arch) for arch in ARCHITECTURES]), (True, [("torch_inline", arch) for arch in ARCHITECTURES]),
                         (False, [("cupy_raw", "sm_80"), ("torch_inline", "sm_90")])):  # fmt: skip
        assert set().union(*(units_of(*pair, alone) for pair in pairs)) == set(units("sm_90"))
        assert set(UNITS_OF_ONE["sm_90"]) <= set().union(*(units_of(*pair, alone) for pair in pairs if pair[1] == "sm_90"))


def planned_softmax(arch: str) -> set[str]:
    """The kernels that launches take, over the widths at which plans change."""
    number = int(arch.removeprefix("sm_"))
    return {
        softmax.plan(rows, columns, dtype, aligned, sm_count=132, capability=(number // 10, number % 10)).kernel
        for rows in ROWS for columns in COLUMNS for dtype in plan.ITEM_BYTES for aligned in (False, True)
    }  # fmt: skip


def nothing_spills_or_computes_in_double(backend: str, arch: str, report: dict[str, str], found: list[list[Any]], names: list[str]) -> None:
    assert len(found) == len(report), "a kernel was not disassembled"
    # CUDA C++ goes by the kernels' own names; Triton and Numba make a cubin a kernel, in the order that they tell of them.
    by_name = {name: facts for name, *facts in found}
    facts = [by_name[kernel] for kernel in report] if set(by_name) == set(report) else [facts for _, *facts in found]
    seen = []
    for (kernel, line), (instructions, registers, local, double) in zip(report.items(), facts, strict=True):
        said = FACTS.fullmatch(line)
        assert said is not None, line
        assert (int(said[1]), int(said[3])) == (registers, instructions), f"{kernel}: the disassembly is of another kernel than {line!r}"
        seen.append(Seen(kernel, int(said[2]), local, double))
    assert not (wrong := complaints(backend, arch, seen) + stale(backend, arch, names)), "\n".join(wrong)


def inspect_shows_what_runs(backend: str, report: dict[str, str], shown: list[list[str]], variants: list[str]) -> None:
    """It compiles with line information, which must change neither registers nor instructions."""
    lines = {kernel.removeprefix("square: "): line for kernel, line in report.items() if kernel.startswith("square")}
    assert {kernel: line for kernel, line, _ in shown if kernel in lines} == lines
    listed = [v for v in variants if not (backend in CUDA_CPP and v == "plain")]  # which its library's own front door compiles
    assert {name for *_, name in shown} == {f"{backend}/square" + f":{v}" * bool(v) for v in listed}


def every_variant_has_kernels(backend: str, names: list[str], variants: dict[str, list[str]]) -> None:
    # Their kernels are compiled by their library's own front door: compile_only has the tuned ones.
    unlisted = {(backend, op, "plain") for backend in (*CUDA_CPP, "numba_cuda") for op in OPS}
    for op, of_op in variants.items():
        kernels = [kernel for kernel in names if re.split("[_:]", kernel)[0] == op]
        found = {name for kernel in kernels for name in variants_of_kernel(kernel, op, of_op)}
        assert found == {name for name in of_op if (backend, op, name) not in unlisted}, op
