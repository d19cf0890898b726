"""From a cuTile kernel to a cubin, GPU or not: cuda-tile writes Tile IR bytecode, tileiras compiles it.

tileiras is a program of a CUDA toolkit newer than opwise's own. It is run and not loaded, so nothing of that toolkit meets the libraries of
this process. What it made is kept below opwise's cache folder, under its version; OPWISE_CUTILE_CUBINS names such a folder of another
machine, and then no compiler is asked for.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import cuda.tile as ct
import torch
from cuda.tile.compilation import ArrayConstraint, CallingConvention, KernelSignature, ScalarConstraint, export_kernel
from opwise.backends.cubin import instructions, told
from opwise.backends.kept import folder, keep
from opwise.backends.protocol import BackendUnavailable
from opwise.profiling.machine_code import sections

BYTECODE = "13.4"  # what the kernels are written in: unchecked loads and divisible slices
LEAST = (13, 4)  # 13.5 is better: before it, products of float32 are a multiplication and an addition each
INSTALL = (
    "pip install --target PREFIX 'nvidia-cuda-tileiras==13.5.*' 'nvidia-cuda-nvcc==13.5.*' 'nvidia-nvvm==13.5.*', and set "
    "OPWISE_TILEIRAS=PREFIX/nvidia/cu13/bin/tileiras"
)
DTYPES = {torch.float32: ct.float32, torch.float16: ct.float16, torch.bfloat16: ct.bfloat16}
REGISTERS, STACK = 0x2F, 0x12  # EIATTR_REGCOUNT and EIATTR_MIN_STACK_SIZE: records of .nv.info, a symbol's number and a value each
FLAGS = ("-O3",)


@dataclass(frozen=True)
class Array:
    """What a kernel may know of an array when it is compiled. aligned: its address and what follows it in its pitch are on 16 bytes.
    wide: sizes and indices need 64 bits. transposed: of a matrix, column-major. Sizes are known at the launch."""

    dtype: torch.dtype
    axes: int
    aligned: bool = True
    wide: bool = False
    transposed: bool = False

    def constraint(self) -> Any:
        unit = 16 // self.dtype.itemsize if self.aligned and self.axes > 1 else 1
        along = [axis == (0 if self.transposed else self.axes - 1) for axis in range(self.axes)]
        return ArrayConstraint(
            DTYPES[self.dtype],
            self.axes,
            index_dtype=ct.int64 if self.wide else ct.int32,
            stride_lower_bound_incl=0,
            alias_groups=(),
            may_alias_internally=False,
            stride_constant=[1 if unbroken else None for unbroken in along],
            stride_divisible_by=[1 if unbroken else unit for unbroken in along],
            shape_divisible_by=[unit if unbroken else 1 for unbroken in along],
            base_addr_divisible_by=16 if self.aligned else self.dtype.itemsize,
        )


INT64 = ScalarConstraint(ct.int64)


@dataclass(frozen=True)
class Specimen:
    """All that a compilation depends on: a kernel and its parameters in order, arrays, INT64, and constants as themselves."""

    name: str
    kernel: Any
    parameters: tuple[Any, ...]

    def signature(self) -> Any:
        parameters = [x.constraint() if isinstance(x, Array) else x for x in self.parameters]
        return KernelSignature(parameters, CallingConvention.cutile_python_v2()).with_mangled_symbol(self.name)

    def digest(self) -> str:
        """Of all that a cubin depends on beside its symbol and the compiler. The bytecode itself names the folder that its source is in."""
        return _digest(self.kernel._pyfunc.__code__.co_filename)


@cache
def _digest(source: str) -> str:
    return hashlib.sha256(Path(source).read_bytes() + repr((BYTECODE, FLAGS, ct.__version__)).encode()).hexdigest()[:16]


@cache
def tileiras() -> tuple[Path, str]:
    """The compiler and its version, "13.4.92": OPWISE_TILEIRAS, else beside this Python, else on PATH, else of the wheels installed here.

    Raises BackendUnavailable with the remedy where there is none, or one that is too old.
    """
    beside = [Path(sys.executable).parent / "tileiras", *([Path(found)] if (found := shutil.which("tileiras")) else [])]
    wheels = [Path(place, "nvidia/cu13/bin/tileiras") for place in sys.path]
    given = os.environ.get("OPWISE_TILEIRAS")
    path = next((path for path in ([Path(given)] if given else [*beside, *wheels]) if os.access(path, os.X_OK)), None)
    if path is None:
        raise BackendUnavailable(f"tileiras is not here{f', nor at OPWISE_TILEIRAS={given}' if given else ''}", INSTALL)
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"\bV(\d+)\.(\d+)\.\d+", said)
    if version is None or (int(version[1]), int(version[2])) < LEAST:
        raise BackendUnavailable(f"tileiras at {path} is {version[0] if version else 'broken'}, and 13.4 is the least", INSTALL)
    return path, version[0].removeprefix("V")


def made_ahead() -> Path | None:
    """The folder of cubins that another machine made, if this process is to take those."""
    given = os.environ.get("OPWISE_CUTILE_CUBINS")
    return Path(given) if given else None


def compiler_version() -> str:
    """Of the compiler here, or of that whose cubins are taken."""
    ahead = made_ahead()
    return f"{ahead.name}, ahead" if ahead else tileiras()[1]


@cache
def cubin(specimen: Specimen, arch: str) -> tuple[bytes, str]:
    """The cubin for "sm_90" and its kernel's symbol. Raises BackendUnavailable where it is neither kept nor can be made, RuntimeError with
    tileiras' message where it is refused."""
    symbol: str = specimen.signature().symbol
    name, ahead = f"{arch}/{symbol}-{specimen.digest()}.cubin", made_ahead()
    place = (ahead or folder() / "cutile" / tileiras()[1]) / name
    if not place.exists():
        if ahead:
            raise BackendUnavailable(f"{ahead} lacks {name}", f"make them anew where tileiras is: python -m opwise_cutile {arch}")
        keep(place, _compiled(specimen, arch))
    return place.read_bytes(), symbol


def _compiled(specimen: Specimen, arch: str) -> bytes:
    bytecode = BytesIO()
    export_kernel(
        specimen.kernel, [specimen.signature()], bytecode, gpu_code=arch, output_format="tileir_bytecode", bytecode_version=BYTECODE
    )
    with tempfile.TemporaryDirectory(prefix="opwise-cutile-") as place:
        source, target = Path(place, "kernel.tileirbc"), Path(place, "kernel.cubin")
        source.write_bytes(bytecode.getvalue())
        command = [str(tileiras()[0]), str(source), "--gpu-name", arch, *FLAGS, "-o", str(target)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"tileiras refuses {specimen.name} for {arch}: {done.stdout.strip()}")
        return target.read_bytes()


def report(specimen: Specimen, arch: str) -> str:
    """ "N registers, M bytes spilled, K instructions". Spilled is the stack's size, and no kernel here has another use for one."""
    made, symbol = cubin(specimen, arch)
    facts = dict(_facts(sections(made)[".nv.info"]))
    return told(facts[REGISTERS], facts[STACK], instructions(made)[symbol])


def _facts(info: bytes) -> list[tuple[int, int]]:
    """(attribute, value) of the kernel of a cubin that holds one."""
    records = (struct.unpack_from("<BBHII", info, at) for at in range(0, len(info), 12))  # each of format 4 and 8 bytes
    return [(attribute, value) for _, attribute, _, _, value in records]
