"""NVRTC's output as CuPy modules, one a kernel and architecture, kept on disk below OPWISE_CACHE_DIR (else ~/.cache/opwise).

A kernel is compiled without the others of its unit, when it is first wanted: all of softmax.cu take a hundred times as long as one of them.

RawModule(code=...) would compile too, but appends -ftz=true to whatever options it is given, and NVRTC obeys the last: subnormal
results would become zero. So NVRTC is called here, through CuPy's own binding, and RawModule loads the cubin.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import cupy
from cupy.cuda import nvrtc

from opwise.backends.cuda_src.sources import FOLDER, STANDARD, alone, digest, resource_facts, target, unit_of, units
from opwise.backends.kept import folder, keep


def nvrtc_version() -> str:
    return ".".join(map(str, nvrtc.getVersion()))


@cache
def module(kernel: str, arch: str) -> Any:
    """The RawModule of a kernel for "sm_90". Raises RuntimeError with NVRTC's message where it refuses."""
    key = digest(kernel, nvrtc_version(), *options(arch))
    path = folder() / f"{kernel}_{arch}_{key}.cubin"
    if not path.exists():
        cubin, _ = compile_kernel(kernel, arch)
        keep(path, cubin)
    return cupy.RawModule(path=str(path))


def options(arch: str) -> tuple[str, ...]:
    """Machine code for that architecture alone. Raises ValueError on a bad arch."""
    if not re.fullmatch(r"sm_\d+[af]?", arch):
        raise ValueError(f"{arch!r} is no architecture: write sm_80, sm_90 or sm_100")
    return f"-arch={target(arch)}", f"-std={STANDARD}", "--ptxas-options=-v"


def compile_kernel(kernel: str, arch: str) -> tuple[bytes, str]:
    """As `compile_unit`, of one kernel. Raises KeyError for a name that fits no unit of `arch`."""
    unit = unit_of(kernel)
    return _compiled(unit, alone(kernel, units(arch)[unit]), arch)


def compile_unit(unit: str, arch: str) -> tuple[bytes, str]:
    """cubin and log. Raises RuntimeError with NVRTC's message, ValueError on a bad arch."""
    return _compiled(unit, units(arch)[unit], arch)


def _compiled(unit: str, text: str, arch: str) -> tuple[bytes, str]:
    flags = (*options(arch), f"-I{FOLDER}")
    program = nvrtc.createProgram(text, f"unit_{unit}.cu", (), ())
    try:
        nvrtc.compileProgram(program, flags)
        return nvrtc.getCUBIN(program), nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as error:
        raise RuntimeError(f"NVRTC refuses {unit} for {arch} ({error}): {nvrtc.getProgramLog(program).strip()}") from error
    finally:
        nvrtc.destroyProgram(program)


def compile_units(arch: str) -> dict[str, str]:
    """Every unit, to nowhere. Kernel -> what ptxas says about it."""
    facts: dict[str, str] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for cubin, log in pool.map(lambda unit: compile_unit(unit, arch), units(arch)):
            facts.update(resource_facts(log, cubin))
    return facts
