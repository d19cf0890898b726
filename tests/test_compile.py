"""Every kernel compiles for sm_80, sm_90 and sm_100, GPU or not, and none spills or computes in double where it should not: each
backend's `compile_only(arch)`, in a process of its own, and the cubins that it made."""

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
from kernel_facts import MOST_REGISTERS, Seen, complaints, stale
from test_softmax_plan import COLUMNS, ROWS

from opwise.backends import BACKENDS
from opwise.backends.cuda_src import plan, softmax
from opwise.inspecting.rows import variants_of_kernel
from opwise.ops import OPS
from opwise.ops.spec import DTYPES

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
CUDA_CPP = ("torch_inline", "cupy_raw")  # which launch by one plan
BY_NVRTC = ("sm_80", "sm_100")  # nvcc need not compile there what NVRTC compiles of the same sources; for sm_90 both do
TOGETHER = ("numba_cuda",)  # compiled for all of them in one process
SOURCE = Path(__file__).resolve().parents[1] / "src"
DTYPE = re.compile("|".join(DTYPES))
FACTS = re.compile(r"(\d+) registers, (\d+) bytes spilled, (\d+) instructions")
UNAVAILABLE = 77  # the exit status by which the child says that the compiler is missing


# Every backend counts the instructions of each cubin that it makes, by one function: that is where the cubins are kept.
CHILD = """
import importlib, json, shutil, sys
from opwise.backends import cubin
from opwise.backends.protocol import BackendUnavailable
made, counted = [], cubin.instructions
def keep(binary):
    made.append(binary)
    return counted(binary)
cubin.instructions = keep
def shared_front_end():
    # Numba takes seconds from Python to LLVM's code, which is the same for every architecture: once is enough.
    from numba.cuda import compiler
    typed, lowered = {}, compiler._compile_pyfunc_with_fixup
    def once(function, signature, **options):
        key = function, str(signature), repr(sorted((k, v) for k, v in options.items() if k != "cc"))
        if key not in typed:
            typed[key] = lowered(function, signature, **options)
        return typed[key]
    compiler._compile_pyfunc_with_fixup = once
def told(arch):
    made.clear()
    try:
        found = importlib.import_module(sys.argv[1]).compile_only(arch)
    except BackendUnavailable as problem:
        print(problem)
        sys.exit(77)
    print(arch, "FOUND", json.dumps({str(k): str(v) for k, v in found.items()} if hasattr(found, "items") else {}))
    from opwise.inspecting.facts import facts
    from opwise.inspecting.tools import ToolMissing
    try:
        kernels = [(name, facts) for of_cubin in facts(made, arch) for name, facts in of_cubin.items()]
        print(arch, "FACTS", json.dumps([(name, f.instructions, f.registers, f.local, f.double) for name, f in kernels]))
    except ToolMissing as problem:
        print(arch, "FACTS", json.dumps(f"no disassembler: {problem}"))
        return
    if arch != "sm_90":
        return
    from opwise.inspecting.compilers import variants
    from opwise.inspecting.rows import inspected
    from opwise.ops import OPS
    backend = sys.argv[1].split(".")[-1]
    rows = [row for row, _ in inspected(backend, "square", "sm_90")[1] if row.status == "ok"]
    line = "{0.registers} registers, {0.spilled_bytes} bytes spilled, {0.instructions} instructions"
    print(arch, "SHOWN", json.dumps([(row.kernel, line.format(row), row.implementation) for row in rows]))
    print(arch, "NAMED", json.dumps({op: variants(backend, op) for op in OPS}))
def without_alike():
    # Of kernels that differ in the 16-bit type or in the width of offsets alone, one: all are compiled for sm_90.
    def wrapped(every):
        def some(*given):
            found = every(*given)
            alike = {name: name.replace("bfloat16", "float16").replace(", wide offsets", "").replace(", beyond 2^31", "") for name in found}
            return {name: found[name] for name in found if at_work == "sm_90" or alike[name] == name or alike[name] not in found}
        return some
    for op in ("square", "mean", "gelu", "softmax", "matmul"):
        module = importlib.import_module(f"{sys.argv[1]}.{op}")
        name = "kernels" if hasattr(module, "kernels") else "specimens"
        setattr(module, name, wrapped(getattr(module, name)))
def without_one_of_16_bits():
    # Of products that differ in the 16-bit type alone one of two units: nvcc compiles both for sm_90.
    from opwise.backends.cupy_raw import module
    every, left_out = module.units, {"sm_80": "_float16", "sm_90": "_bfloat16", "sm_100": "_bfloat16"}
    def units(arch):
        return {name: text for name, text in every(arch).items() if not (name.startswith("matmul") and name.endswith(left_out[arch]))}
    module.units = units
if "cupy" in sys.argv[1] and shutil.which("nvcc"):
    without_one_of_16_bits()
if "numba" in sys.argv[1]:
    shared_front_end()
if "numba" in sys.argv[1] or "triton" in sys.argv[1]:
    without_alike()
import gc
gc.disable()  # looking for cycles takes Numba's front end a fifth of its time
for at_work in sys.argv[2:]:
    told(at_work)
    gc.collect()
"""


@cache
def told(backend: str, *archs: str) -> dict[str, dict[str, Any]]:
    """Of each architecture: FOUND, what compile_only says of each kernel. FACTS: (symbol, instructions, registers, stack accesses,
    double-precision instructions) of each, or why there are none. SHOWN, NAMED, for sm_90: what opwise inspect tells of square, and each
    op's variants."""
    clean = {k: v for k, v in os.environ.items() if k not in {"TRITON_INTERPRET", "NUMBA_ENABLE_CUDASIM"}}
    clean |= {"PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]), "PYTHONWARNINGS": "default"}
    command = [sys.executable, "-c", CHILD, BACKENDS[backend], *archs]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, capture_output=True, text=True, timeout=880, env=clean, cwd=folder, check=False)
    if done.returncode == UNAVAILABLE:
        nvcc = shutil.which("nvcc") or "no nvcc on PATH"
        pytest.skip(f"{backend}: {done.stdout.strip()} ({nvcc})")
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line.split(" ", 2) for line in done.stdout.splitlines() if line.startswith(archs)]
    return {arch: {name: json.loads(text) for of, name, text in lines if of == arch} for arch in archs}


def nvrtc_works() -> bool:
    with contextlib.suppress(Exception):  # a library that it loads may be missing
        return bool(importlib.import_module("cupy.cuda").nvrtc.getVersion())
    return False


def compiling_backends() -> list[str]:
    return [name for name, module in BACKENDS.items() if hasattr(importlib.import_module(module), "compile_only")]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("backend", "arch"), [
    pytest.param(backend, arch, marks=pytest.mark.xdist_group(f"compile {backend} {'' if backend in TOGETHER else arch}"))
    for backend in compiling_backends() for arch in ARCHITECTURES
])  # fmt: skip
def test_every_kernel_compiles_without_spills_or_doubles(backend: str, arch: str) -> None:
    """One test, because compiling takes most of its time."""
    if backend == "torch_inline" and arch in BY_NVRTC and nvrtc_works():
        pytest.skip(f"cupy_raw compiles the same sources for {arch}")
    answer = told(backend, *ARCHITECTURES)[arch] if backend in TOGETHER else told(backend, arch)[arch]
    report = answer["FOUND"]
    assert all(any(op in kernel for kernel in report) for op in OPS), f"kernels of each op are compiled: {sorted(report)}"
    facts = [FACTS.fullmatch(line) for line in report.values()]
    assert all(facts), f"every compiler tells what it made: {report}"
    assert all(1 <= int(f[1]) <= 255 and int(f[3]) >= 8 for f in facts if f), report
    assert all(kernel.split("_")[0].split(":")[0] in OPS and DTYPE.search(kernel) for kernel in report), "its op and dtype are in its name"
    if backend in CUDA_CPP:
        assert planned_softmax(arch) <= set(report), f"planned, but not there: {sorted(planned_softmax(arch) - set(report))}"
        registers = {kernel: int(f[1]) for kernel, f in zip(report, facts, strict=True) if f}
        assert arch != "sm_90" or all(registers[kernel] <= most for kernel, most in MOST_REGISTERS.items()), registers
    if isinstance(answer["FACTS"], str):
        pytest.skip(f"all compile, none is disassembled: {answer['FACTS']}")
    nothing_spills_or_computes_in_double(backend, arch, report, answer["FACTS"])
    if arch == "sm_90":
        inspect_shows_what_runs(backend, report, answer["SHOWN"], answer["NAMED"]["square"])
        every_variant_has_kernels(backend, report, answer["NAMED"])


def planned_softmax(arch: str) -> set[str]:
    """The kernels that launches take, over the widths at which plans change."""
    number = int(arch.removeprefix("sm_"))
    return {
        softmax.plan(rows, columns, dtype, aligned, sm_count=132, capability=(number // 10, number % 10)).kernel
        for rows in ROWS for columns in COLUMNS for dtype in plan.ITEM_BYTES for aligned in (False, True)
    }  # fmt: skip


def nothing_spills_or_computes_in_double(backend: str, arch: str, report: dict[str, str], found: list[list[Any]]) -> None:
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
    assert not (wrong := complaints(backend, arch, seen) + stale(backend, arch, seen)), "\n".join(wrong)


def inspect_shows_what_runs(backend: str, report: dict[str, str], shown: list[list[str]], variants: list[str]) -> None:
    """It compiles with line information, which must change neither registers nor instructions."""
    lines = {kernel.removeprefix("square: "): line for kernel, line in report.items() if kernel.startswith("square")}
    assert {kernel: line for kernel, line, _ in shown if kernel in lines} == lines
    listed = [v for v in variants if not (backend in CUDA_CPP and v == "plain")]  # which its library's own front door compiles
    assert {name for *_, name in shown} == {f"{backend}/square" + f":{v}" * bool(v) for v in listed}


def every_variant_has_kernels(backend: str, report: dict[str, str], named: dict[str, list[str]]) -> None:
    # Their kernels are compiled by their library's own front door: compile_only has the tuned ones.
    unlisted = {(backend, op, "plain") for backend in (*CUDA_CPP, "numba_cuda") for op in OPS}
    for op, names in named.items():
        kernels = [kernel for kernel in report if re.split("[_:]", kernel)[0] == op]
        found = {name for kernel in kernels for name in variants_of_kernel(kernel, op, names)}
        assert found == {name for name in names if (backend, op, name) not in unlisted}, op
