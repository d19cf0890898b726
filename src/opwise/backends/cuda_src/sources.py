"""The units that the CUDA C++ backends compile.

A unit is a translation unit of nvcc: an op, an op's ladder, or a family of matmul kernels, most of one dtype. The text of a matmul unit is
a file of macros and a generated line for each configuration. NVRTC compiles one kernel of a unit at a time (`alone`). A kernel is an
extern "C" function whose parameters all have 8 bytes, addresses and int64 sizes, so that one launcher fits all; its name begins with the
op's. The first parameters may be tensor maps instead of addresses (`Plan.matrices`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from opwise.backends.cubin import instructions, told
from opwise.backends.cuda_src import matmul
from opwise.backends.cuda_src.matmul import extra
from opwise.backends.cuda_src.matmul.configurations import KINDS
from opwise.backends.cuda_src.matmul.kernels import CONFIGS

FOLDER = Path(__file__).parent
STANDARD = "c++17"
STREAM, LADDER_TMA = "softmax_stream", "matmul_ladder_tma"
# Prefix of a matmul unit's name -> its file, which defines the macros that `Config.instance` uses. The first match counts.
FILES: Mapping[str, str] = {
    "matmul_wgmma_tfloat32": "matmul/kernels/wgmma_tf32.cu",
    "matmul_wgmma": "matmul/kernels/wgmma.cu",
    "matmul_ffma": "matmul/kernels/ffma.cu",
    "matmul_cluster": "matmul/kernels/cluster.cu",
    "matmul_unaligned_tma": "matmul/extra/unaligned_tma.cu",
    "matmul_extra": "matmul/extra/extra.cu",
    "matmul": "matmul/kernels/portable.cu",
}
ANY_GPU = {f"{unit}_{kind}" for unit in ("matmul", "matmul_transposed", "matmul_extra") for kind in KINDS}


def _of_matmul(sm90: bool) -> dict[str, str]:
    """Unit -> text, of all configurations, including extra's: of the units for sm_90 only, or of those for any GPU."""
    found: dict[str, dict[str, str]] = {}
    for config in (*CONFIGS, *extra.configs()):
        for (unit, kernel), line in config.instances().items():
            found.setdefault(unit, {})[kernel] = line  # once, if two configurations share an instance
    return {unit: _text(unit, lines.values()) for unit, lines in found.items() if (unit not in ANY_GPU) == sm90}


def _text(unit: str, lines: Iterable[str]) -> str:
    file = next(file for start, file in FILES.items() if unit.startswith(start))
    textbook = "#define MATMUL_TEXTBOOK\n" if unit == f"matmul_{KINDS[0]}" else ""
    return f'{textbook}#include "{file}"\n' + "".join(f"{line}\n" for line in lines)


# Unit -> the text to compile with FOLDER on the include path.
UNITS: Mapping[str, str] = {
    **{op: f'#include "{op}.cu"\n' for op in ("square", "mean", "gelu")},
    "softmax": '#include "softmax/softmax.cu"\n',
    **_of_matmul(sm90=False),
    **{f"{op}_ladder": f'#include "{op}/ladder/ladder.cu"\n' for op in ("softmax", "matmul")},
}
# Units for one architecture only.
UNITS_OF_ONE: Mapping[str, Mapping[str, str]] = {
    "sm_90": {STREAM: '#include "softmax/stream.cu"\n', LADDER_TMA: '#include "matmul/ladder/tma.cu"\n', **_of_matmul(sm90=True)}
}
# matmul's kernel -> unit.
_UNIT_OF = {kernel: unit for config in (*CONFIGS, *extra.configs()) for unit, kernel in config.instances()}


def units(arch: str) -> Mapping[str, str]:
    """All units for an architecture (as "sm_90"), without those of matmul/extra if OPWISE_EXTRA is off."""
    every = {**UNITS, **UNITS_OF_ONE.get(arch, {})}
    return every if extra.enabled() else {unit: text for unit, text in every.items() if "matmul/extra/" not in text}


def target(arch: str) -> str:
    """The compiler's target: wgmma and setmaxnreg need "sm_90a", whose code runs on no other GPU."""
    return f"{arch}a" if arch in UNITS_OF_ONE else arch


def unit_of(kernel: str) -> str:
    """The unit of a kernel. Raises KeyError for a name that fits none."""
    if kernel in _UNIT_OF:
        return _UNIT_OF[kernel]
    if kernel.startswith("softmax_") and "_stream_" in kernel:
        return STREAM
    if kernel.startswith(f"{LADDER_TMA}_"):
        return LADDER_TMA
    op, *rest = kernel.split("_")
    unit = f"{op}_ladder" if rest[:1] == ["ladder"] else f"{op}_float32" if kernel == matmul.TEXTBOOK else op
    if unit not in UNITS:
        raise KeyError(f"no unit holds a kernel {kernel!r}: there are {', '.join(UNITS)}")
    return unit


def alone(kernel: str, text: str) -> str:
    """A unit's text with only this kernel, and those without IF_WANTED (one_kernel.cuh): the textbook kernels."""
    return f"#define ONE_KERNEL\n#define WANTED_{kernel} , KEEP\n{text}"


def digest(*more: str) -> str:
    """A cache key for compiled code: it changes with these sources, the units and `more`."""
    h = hashlib.sha256(repr((sorted(UNITS.items()), sorted(UNITS_OF_ONE.items()), extra.enabled(), more)).encode())
    for path in sorted(FOLDER.rglob("*.cu*")):
        h.update(path.relative_to(FOLDER).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return h.hexdigest()[:20]


def resource_facts(log: str, cubin: bytes) -> dict[str, str]:
    """Kernel -> "N registers, M bytes spilled, K instructions", from the log of ptxas -v and the cubin."""
    facts: dict[str, str] = {}
    counts = instructions(cubin)
    kernel, spilled = "", 0
    for line in log.splitlines():
        if "Compiling entry function" in line:
            kernel, spilled = line.split("'")[1], 0
        elif "bytes spill stores" in line:
            spilled = int(line.split("bytes spill stores")[0].split(",")[-1])
        elif "Used" in line and kernel:
            facts[kernel] = told(int(line.split("Used")[1].split()[0]), spilled, counts[kernel])
    return facts
