"""Kernels compiled by NVRTC, as CuPy modules, one per kernel and architecture, cached on disk (kept.py).

A kernel is compiled on first use, without the others of its unit: all of softmax.cu take a hundred times as long as one kernel.

RawModule(code=...) appends -ftz=true to the options, so that NVRTC would flush subnormal results to zero. So NVRTC is called here,
through CuPy's binding, and RawModule loads the cubin.
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
    """The RawModule of a kernel for an architecture (as "sm_90"). Raises RuntimeError with NVRTC's message if it fails."""
    key = digest(kernel, nvrtc_version(), *options(arch))
    path = folder() / f"{kernel}_{arch}_{key}.cubin"
    if not path.exists():
        cubin, _ = compile_kernel(kernel, arch)
        keep(path, cubin)
    return cupy.RawModule(path=str(path))


def options(arch: str) -> tuple[str, ...]:
    """NVRTC's options: machine code for that architecture alone. Raises ValueError for a bad arch."""
    if not re.fullmatch(r"sm_\d+[af]?", arch):
        raise ValueError(f"{arch!r} is no architecture: write sm_80, sm_90 or sm_100")
    return f"-arch={target(arch)}", f"-std={STANDARD}", "--ptxas-options=-v"


def compile_kernel(kernel: str, arch: str) -> tuple[bytes, str]:
    """As `compile_unit`, for one kernel. Raises KeyError for a name that fits no unit of `arch`."""
    unit = unit_of(kernel)
    return _compiled(unit, alone(kernel, units(arch)[unit]), arch)


def compile_unit(unit: str, arch: str) -> tuple[bytes, str]:
    """(cubin, log). Raises RuntimeError with NVRTC's message, ValueError for a bad arch."""
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
    """Compiles every unit and discards the code. Kernel -> registers, spills, instructions, as resource_facts."""
    facts: dict[str, str] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for cubin, log in pool.map(lambda unit: compile_unit(unit, arch), units(arch)):
            facts.update(resource_facts(log, cubin))
    return facts
