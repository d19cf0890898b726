"""The units that the CUDA C++ backends compile.

A unit is what nvcc compiles in one go: an op, or of matmul, whose kernels take longest, one dtype; and the ladder of an op that has one.
NVRTC compiles one kernel of it at a time (`alone`). A kernel is an extern "C" function whose parameters are all 8 bytes wide, addresses and
int64 sizes, so that one launcher fits all; its name begins with the op's. The first parameters may be tensor maps instead of addresses:
`Plan.matrices`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from opwise.backends.cubin import instructions, told
from opwise.backends.cuda_src.matmul_kernels import GROUPS
from opwise.backends.cuda_src.matmul_odd import TILES as ODD_TILES

FOLDER = Path(__file__).parent
STANDARD = "c++17"

# Unit -> the text to compile with FOLDER on the include path.
UNITS: Mapping[str, str] = {
    **{op: f'#include "{op}.cu"\n' for op in ("square", "mean", "gelu", "softmax")},
    **{f"matmul_{dtype}": f'#define MATMUL_GROUP {number}\n#include "matmul.cu"\n' for dtype, number in GROUPS.items()},
    **{f"{op}_ladder": f'#include "{op}_ladder.cu"\n' for op in ("softmax", "matmul")},
}

WGMMA, HOPPER32, CLUSTER, ROWS32 = "matmul_wgmma", "matmul_hopper32", "matmul_cluster", "matmul_rows32"
ODD, STREAM = "matmul_odd", "softmax_stream"
HOPPER32_KERNELS = ("matmul_wgmma_tfloat32_", "matmul_tma_float32_")  # how their names begin
ROWS32_KERNELS = "matmul_rows_float32_"
# Units of instructions that one architecture alone has, or of kernels made to its measure.
UNITS_OF_ONE: Mapping[str, Mapping[str, str]] = {
    "sm_90": {
        **{name: f'#include "{name}.cu"\n' for name in (WGMMA, HOPPER32, ROWS32, STREAM)},
        **{f"{CLUSTER}_{dtype}": f'#define MATMUL_GROUP {number}\n#include "{CLUSTER}.cu"\n' for dtype, number in GROUPS.items()},
        **{f"{ODD}_{dtype}": f'#define MATMUL_GROUP {GROUPS[dtype]}\n#include "{ODD}.cu"\n' for dtype in ODD_TILES},
    }
}


def units(arch: str) -> Mapping[str, str]:
    """All units for "sm_90"."""
    return {**UNITS, **UNITS_OF_ONE.get(arch, {})}


def target(arch: str) -> str:
    """What to ask a compiler for: the GPU's own instructions (wgmma, setmaxnreg) are of "sm_90a", which no other GPU runs."""
    return f"{arch}a" if arch in UNITS_OF_ONE else arch


def unit_of(kernel: str) -> str:
    """The unit that holds a kernel. Raises KeyError for a name that fits none."""
    if kernel.startswith(HOPPER32_KERNELS):
        return HOPPER32
    if kernel.startswith(ROWS32_KERNELS):
        return ROWS32
    if kernel.startswith(f"{WGMMA}_"):
        return WGMMA
    if kernel.startswith((f"{CLUSTER}_", f"{ODD}_")):
        return "_".join(kernel.split("_")[:3])
    if kernel.startswith("softmax_") and "_stream_" in kernel:
        return STREAM
    op, *rest = kernel.split("_")
    unit = f"{op}_{next((name for name in rest if name in GROUPS), '')}" if op == "matmul" else op
    unit = f"{op}_ladder" if rest[:1] == ["ladder"] else unit
    if unit not in UNITS:
        raise KeyError(f"no unit holds a kernel {kernel!r}: there are {', '.join(UNITS)}")
    return unit


def alone(kernel: str, text: str) -> str:
    """A unit's text, of which this kernel alone is compiled, and what is defined without IF_WANTED (one_kernel.cuh): the textbooks'."""
    return f"#define ONE_KERNEL\n#define WANTED_{kernel} , KEEP\n{text}"


def digest(*more: str) -> str:
    """A key for what is compiled from these sources: it changes with any of them, with the units, and with `more`."""
    h = hashlib.sha256(repr((sorted(UNITS.items()), sorted(UNITS_OF_ONE.items()), more)).encode())
    for path in sorted(FOLDER.glob("*.cu*")):
        h.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return h.hexdigest()[:20]


def resource_facts(log: str, cubin: bytes) -> dict[str, str]:
    """Kernel -> "N registers, M bytes spilled, K instructions", from what ptxas -v says and what it made."""
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
