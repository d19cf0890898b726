"""Compilation of a kernel without a GPU, for continuous integration and for reading its PTX."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from opwise.backends.cubin import instructions, told

POINTERS = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16", "tfloat32": "*fp32"}


@dataclass(frozen=True)
class Specimen:
    """A kernel with the types of its runtime arguments, its constexprs and its compile options: all inputs of a compilation.

    Pointers and ints are assumed to be multiples of 16, except those named in `odd`.
    """

    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    odd: tuple[str, ...] = ()


def compiled(specimen: Specimen, arch: str) -> Any:
    """Triton's CompiledKernel for `arch`, such as "sm_90"; its `asm` holds PTX and cubin. Raises ValueError on any other form of `arch`."""
    from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

    found = re.fullmatch(r"sm_(\d+)", arch)
    if found is None:
        raise ValueError(f"{arch!r} is no architecture: write sm_80, sm_90 or sm_100")
    names = specimen.kernel.arg_names
    signature = {name: specimen.types.get(name, "constexpr") for name in names}
    aligned = {
        (names.index(name),): [["tt.divisibility", 16]]
        for name, kind in specimen.types.items()
        if name not in specimen.odd and not kind.startswith(("tensordesc", "fp"))
    }
    made = GluonASTSource if isinstance(specimen.kernel, GluonJITFunction) else ASTSource
    source = made(fn=specimen.kernel, signature=signature, constexprs=dict(specimen.constants), attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", int(found[1]), 32), options=dict(specimen.options))


def report(specimen: Specimen, arch: str) -> str:
    """ "N registers, M bytes spilled, K instructions", or "compiled" if cuobjdump does not report registers and stack."""
    kernel = compiled(specimen, arch)
    (count,) = instructions(kernel.asm["cubin"]).values()
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder, "kernel.cubin")
        binary.write_bytes(kernel.asm["cubin"])
        tool = knobs.nvidia.cuobjdump.path
        read = subprocess.run([tool, "--dump-resource-usage", str(binary)], capture_output=True, text=True, check=False)
    registers = re.search(r"REG:(\d+)", read.stdout)
    stack = re.search(r"STACK:(\d+)", read.stdout)
    if registers is None or stack is None:
        return "compiled"
    return told(int(registers[1]), int(stack[1]), count)
