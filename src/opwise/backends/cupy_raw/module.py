"""NVRTC's output as CuPy modules, one a unit and architecture, kept on disk below OPWISE_CACHE_DIR (else ~/.cache/opwise).

RawModule(code=...) would compile too, but appends -ftz=true to whatever options it is given, and NVRTC obeys the last: subnormal
results would become zero. So NVRTC is called here, through CuPy's own binding, and RawModule loads the cubin.
"""

from __future__ import annotations

import os
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import cupy
from cupy.cuda import nvrtc

from opwise.backends.cuda_src.sources import FOLDER, STANDARD, digest, resource_facts, target, units


def nvrtc_version() -> str:
    return ".".join(map(str, nvrtc.getVersion()))


@cache
def module(unit: str, arch: str) -> Any:
    """The RawModule of a unit for "sm_90". Raises RuntimeError with NVRTC's message where it refuses."""
    key = digest(unit, nvrtc_version(), *options(arch))
    path = _folder() / f"{unit}_{arch}_{key}.cubin"
    if not path.exists():
        cubin, _ = compile_unit(unit, arch)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(cubin)
        Path(file.name).replace(path)  # all or nothing: other processes may be writing the same
    return cupy.RawModule(path=str(path))


def options(arch: str) -> tuple[str, ...]:
    """Machine code for that architecture alone. Raises ValueError on a bad arch."""
    if not re.fullmatch(r"sm_\d+[af]?", arch):
        raise ValueError(f"{arch!r} is no architecture: write sm_80, sm_90 or sm_100")
    return f"-arch={target(arch)}", f"-std={STANDARD}", "--ptxas-options=-v"


def compile_unit(unit: str, arch: str) -> tuple[bytes, str]:
    """cubin and log. Raises RuntimeError with NVRTC's message, ValueError on a bad arch."""
    flags = (*options(arch), f"-I{FOLDER}")
    program = nvrtc.createProgram(units(arch)[unit], f"unit_{unit}.cu", (), ())
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


def _folder() -> Path:
    root = os.environ.get("OPWISE_CACHE_DIR")
    folder = Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opwise"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(_temporary().name)  # a read-only home: compiled anew in each process


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="opwise-")
