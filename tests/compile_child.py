"""The process that test_compile.py starts: it compiles a backend's kernels for some architectures, and prints what came of each.

Of kernels whose names differ in numbers alone, one or two are compiled. A name is compiled for one of the architectures: what Hopper alone
has for sm_90, what any GPU runs for sm_80. Of kernels that differ in the 16-bit type or in the width of offsets alone, one is compiled for
sm_80 and the other for sm_90. Beside them each architecture has what kernel_facts.py lists for it, and sm_100 of each op, or of each unit
of CUDA C++, a few of the others. OPWISE_TEST_EVERY_KERNEL=1 compiles all numbers.

    python compile_child.py cupy_raw alone sm_80 sm_90      # or '': nvcc and NVRTC are both here, and share what they compile
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from kernel_facts import CUDA_CPP, KNOWN, MOST_REGISTERS

from opwise.backends import BACKENDS, cubin
from opwise.backends.cuda_on_cpu import build
from opwise.backends.cuda_src import sources
from opwise.backends.cuda_src.sources import FOLDER, UNITS, UNITS_OF_ONE, alone
from opwise.backends.protocol import BackendUnavailable
from opwise.ops import OPS

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
UNAVAILABLE = 77  # the exit status that says that the compiler is missing
SHOWN = "square"  # whose kernels `opwise inspect` is asked for too, for sm_90
HOPPER = "sm_90"
SMALL_UNITS = {"square", "mean", "gelu"}
DEFINED = re.compile(rf'extern "C" __global__ [^;{{]*?\b((?:{"|".join(OPS)})_\w+)\(')
FEW = 40  # of so many kernels one is compiled for sm_100
EVERY_KERNEL = "OPWISE_TEST_EVERY_KERNEL" in os.environ
# A size, and no part of a dtype, of how wide accesses are, or of the columns alone by which a row gets its kernel.
NUMBER = re.compile(r"(?<!float)(?<!_v)(?<!\d)(?:\d+(?!\d| columns)|(?<=, )\d+(?= columns))")
WIDE = re.compile(r", (?:wide offsets|beyond 2\^31)")
ANY_TYPE = re.compile(rf"{WIDE.pattern}|mma_\d+x\d+_s\d|fma_\d+x\d+_s\d|split_k\d")  # 64-bit offsets, and sums, which are float32


def form(name: str) -> str:
    """A kernel's name without its numbers: 1 is one split, one block, one stage, and so code of its own. 16-bit types are alike, and all
    types where what is said beside them is."""
    said = NUMBER.sub(lambda number: number[0] if number[0] == "1" else "n", name.replace("bfloat16", "float16"))
    return re.sub(r"\bt?float\d+", "any", said) if ANY_TYPE.search(name) else said


def some_of(names: Iterable[str], *places: int) -> set[str]:
    """Of each form those at these places: 0 is the first, -1 the last, of another 16-bit type where the form has both."""
    forms: dict[str, list[str]] = {}
    for name in names:
        forms.setdefault(form(name), []).append(name)
    return {name for alike in forms.values() for name in (alike if EVERY_KERNEL else (alike[at] for at in places))}


def listed(backend: str, arch: str, names: Iterable[str], op: str = "") -> list[str]:
    """Those that something is said of in kernel_facts.py, by their names as `compile_only` gives them."""
    of_names = {name: f"{op}: {name}" if op else name for name in names}
    most = MOST_REGISTERS if arch == HOPPER else {}
    return [name for name, full in of_names.items() if full in most or any(known.names(backend, arch, full) for known in KNOWN)]


def chosen(backend: str, op: str, arch: str, names: Callable[[str], Iterable[str]]) -> set[str]:
    """Of Triton's and Numba's kernels for an architecture, `names(arch)`, those to compile."""
    any_gpu, here = list(names("sm_80")), list(names(arch))
    alike = {name: WIDE.sub("", name.replace("bfloat16", "float16")) for name in any_gpu}
    first = [name for name in any_gpu if alike[name] == name or alike[name] not in any_gpu]
    more = listed(backend, arch, here, op)
    if arch == "sm_80":
        return some_of(first, 0).union(more)
    if arch == HOPPER:
        rest = [name for name in here if name not in first]
        return some_of([name for name in rest if name in any_gpu], -1) | some_of(
            [name for name in rest if name not in any_gpu], 0, -1
        ).union(more)
    return {*here[::FEW], *more, *some_of([name for name in here if name not in any_gpu and name not in names(HOPPER)], 0)}


def units_of(backend: str, arch: str, alone_here: bool) -> set[str]:
    """Units of CUDA C++ of which the backend compiles all forms: where nvcc and NVRTC are both here, NVRTC for sm_80, nvcc for sm_90."""
    hopper = {*UNITS_OF_ONE[HOPPER], "softmax"}  # softmax's clusters are no kernels elsewhere
    of_float16 = {unit for unit in UNITS if unit.startswith("matmul") and unit.endswith("_float16")}
    wanted = {"sm_80": set(UNITS) - of_float16, HOPPER: hopper | of_float16}.get(arch, set())
    mine = alone_here or (backend, arch) in (("cupy_raw", "sm_80"), ("torch_inline", HOPPER))
    return (wanted if mine else set()) | SMALL_UNITS


def units_to_compile(backend: str, arch: str, alone_here: bool, every: Mapping[str, str], names: Mapping[str, list[str]]) -> dict[str, str]:
    """Unit -> its text, of which some kernels are compiled: of each form one or two, elsewhere one, as CuPy compiles it, and those listed.
    Of units that are not of this architecture alone, where others are, the latter."""
    all_forms, found = units_of(backend, arch, alone_here), {}
    own = {unit for unit in every if unit not in UNITS} or set(UNITS)
    for unit, text in every.items():
        some = set(listed(backend, arch, names[unit]))
        if unit in all_forms:
            some |= some_of(names[unit], *((0, -1) if unit not in UNITS else (-1,) if arch == HOPPER else (0,)))
        elif unit in own | {"softmax"}:
            some.add(names[unit][-1])
        for kernel in () if some == set(names[unit]) else some:
            text = alone(kernel, text)
        if some:
            found[unit] = text
    return found


def kernels_of(unit: str, text: str) -> list[str]:
    """Names of the kernels that a unit defines. Raises BackendUnavailable without a C++ compiler."""
    return DEFINED.findall(build._preprocessed(unit, text, (FOLDER,)))


def cuda(backend: str, alone_here: bool) -> Callable[[str], list[str]]:
    """Lets the backend compile what is wanted of its units, and gives a function that tells of an architecture all kernels there are."""
    if backend == "cupy_raw":
        importlib.import_module(BACKENDS[backend])._import_cupy()  # or says that it is missing
    module = importlib.import_module(f"{BACKENDS[backend]}.{'module' if backend == 'cupy_raw' else 'toolchain'}")

    @cache
    def names(arch: str) -> dict[str, list[str]]:
        return {unit: kernels_of(unit, text) for unit, text in sources.units(arch).items()}

    module.units = lambda arch: units_to_compile(backend, arch, alone_here, sources.units(arch), names(arch))
    return lambda arch: [kernel for unit in names(arch).values() for kernel in unit]


def python(backend: str) -> Callable[[str], list[str]]:
    """The same of Triton and Numba, whose kernels are `specimens(arch)` or `kernels()` of each op's module."""
    told: dict[str, Callable[[str], dict[str, Any]]] = {}
    at_work = ""

    def here(op: str, of: Callable[..., Mapping[str, Any]]) -> Callable[[str], dict[str, Any]]:
        if of.__code__.co_argcount:
            return lambda arch: dict(of(arch))
        return lambda arch: {name: kernel for name, kernel in of().items() if kernel.runs_on(arch)}

    def some(op: str) -> dict[str, Any]:
        wanted = chosen(backend, op, at_work, told[op])
        return {name: kernel for name, kernel in told[op](at_work).items() if name in wanted}

    def names(arch: str) -> list[str]:
        nonlocal at_work
        at_work = arch
        return [f"{op}: {name}" for op, of in told.items() for name in of(arch)]

    if backend == "numba_cuda":
        importlib.import_module(BACKENDS[backend])._import_numba()  # or says that it is missing
        shared_front_end()
    for op in OPS:
        module = importlib.import_module(f"{BACKENDS[backend]}.{op}")
        name = "kernels" if hasattr(module, "kernels") else "specimens"
        told[op] = here(op, getattr(module, name))
        setattr(module, name, lambda *_, op=op: some(op))
    return names


def shared_front_end() -> None:
    """Numba takes seconds from Python to LLVM's code, which is the same for every architecture: once is enough. It also reads a device
    function anew at each call that it puts it into, and hashes all options alike, so that it compares them one by one with each it has had.
    What it makes is the same without."""
    from numba.cuda import compiler
    from numba.cuda.core import inline_closurecall, ir, targetconfig

    ir.Loc.__deepcopy__ = lambda place, memo: place
    inliner, options = inline_closurecall.InlineWorker, targetconfig.TargetConfig
    read, compared = inliner.run_untyped_passes, options.__eq__
    functions: dict[Any, Any] = {}

    def read_once(self: Any, function: Any, enable_ssa: bool = False) -> Any:
        self.flags.enable_ssa = enable_ssa  # as reading does, which the caller's own passes then see
        if (function, enable_ssa) not in functions:
            functions[function, enable_ssa] = read(self, function, enable_ssa)
        return functions[function, enable_ssa]

    inliner.run_untyped_passes = read_once
    options.__eq__ = lambda self, other: (type(self) is type(other) and self._values == other._values) or compared(self, other)
    lowered: dict[Any, Any] = {}
    lower = compiler._compile_pyfunc_with_fixup

    def once(function: Any, signature: Any, **options: Any) -> Any:
        key = function, str(signature), repr(sorted((k, v) for k, v in options.items() if k != "cc"))
        if key not in lowered:
            lowered[key] = lower(function, signature, **options)
        return lowered[key]

    compiler._compile_pyfunc_with_fixup = once


def kept() -> list[bytes]:
    """Every backend counts the instructions of each cubin that it makes, by one function: from now on the cubins are in this list."""
    made: list[bytes] = []
    counted = cubin.instructions

    def keep(binary: bytes) -> dict[str, int]:
        made.append(binary)
        return counted(binary)

    cubin.instructions = sources.instructions = keep  # type: ignore[attr-defined]
    return made


def told(backend: str, arch: str, names: Callable[[str], list[str]], made: list[bytes]) -> dict[str, Any]:
    """NAMES: all kernels that there are. FOUND: what compile_only says of those compiled. FACTS: (symbol, instructions, registers, stack
    accesses, double-precision instructions) of each, or why there are none. For sm_90 SHOWN, what opwise inspect tells of square, and
    VARIANTS, each op's."""
    from opwise.inspecting.compilers import variants
    from opwise.inspecting.facts import facts
    from opwise.inspecting.rows import inspected
    from opwise.inspecting.tools import ToolMissing

    made.clear()
    answer: dict[str, Any] = {"NAMES": names(arch), "FOUND": dict(importlib.import_module(BACKENDS[backend]).compile_only(arch))}
    try:
        kernels = [(name, facts) for of_cubin in facts(made, arch) for name, facts in of_cubin.items()]
    except ToolMissing as problem:
        return answer | {"FACTS": f"no disassembler: {problem}"}
    answer["FACTS"] = [(name, f.instructions, f.registers, f.local, f.double) for name, f in kernels]
    if arch == HOPPER:
        rows = [row for row, _ in inspected(backend, SHOWN, arch)[1] if row.status == "ok"]
        line = "{0.registers} registers, {0.spilled_bytes} bytes spilled, {0.instructions} instructions"
        answer["SHOWN"] = [(row.kernel, line.format(row), row.implementation) for row in rows]
        answer["VARIANTS"] = {op: variants(backend, op) for op in OPS}
    return answer


def main(backend: str, alone_here: str, *archs: str) -> int:
    made = kept()
    try:
        names = cuda(backend, bool(alone_here)) if backend in CUDA_CPP else python(backend)
        gc.disable()  # looking for cycles takes Numba's front end a fifth of its time
        for arch in archs:
            print(json.dumps({arch: told(backend, arch, names, made)}))  # noqa: T201
    except BackendUnavailable as problem:
        print(problem)  # noqa: T201
        return UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
