"""The units that the CUDA C++ backends compile.

A unit is what nvcc compiles in one go: an op, or of matmul, whose kernels take longest, one dtype; and the ladder of an op that has one.
NVRTC compiles one kernel of it at a time (`alone`). A kernel is an extern "C" function whose parameters are all 8 bytes wide, addresses and
int64 sizes, so that one launcher fits all; its name begins with the op's. The first parameters may be tensor maps instead of addresses:
`Plan.matrices`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from opwise.backends.cubin import instructions, told
from opwise.backends.cuda_src.matmul.extra import enabled as extra_enabled
from opwise.backends.cuda_src.matmul.kernels import KERNELS

FOLDER = Path(__file__).parent
STANDARD = "c++17"
EXTRA, EXTRA_CLUSTER, UNALIGNED = "matmul_extra", "matmul_extra_cluster", "matmul_unaligned_tma"  # off where extra_enabled() is false
CLUSTER, WGMMA, WGMMA_TF32, FFMA, STREAM = "matmul_cluster", "matmul_wgmma", "matmul_wgmma_tf32", "matmul_ffma", "softmax_stream"


def _by_dtype(unit: str, path: str, dtypes: Iterable[str] = KERNELS) -> dict[str, str]:
    """One unit a dtype: of matmul, whose kernels take longest to compile."""
    return {f"{unit}_{dtype}": f'#define MATMUL_{dtype.upper()}\n#include "{path}"\n' for dtype in dtypes}


# Unit -> the text to compile with FOLDER on the include path.
UNITS: Mapping[str, str] = {
    **{op: f'#include "{op}.cu"\n' for op in ("square", "mean", "gelu")},
    "softmax": '#include "softmax/softmax.cu"\n',
    **_by_dtype("matmul", "matmul/kernels/portable.cu"),
    **_by_dtype(EXTRA, "matmul/extra/extra.cu"),
    **{f"{op}_ladder": f'#include "{op}/ladder/ladder.cu"\n' for op in ("softmax", "matmul")},
}
# Units of instructions that one architecture alone has, or of kernels made to its measure.
UNITS_OF_ONE: Mapping[str, Mapping[str, str]] = {
    "sm_90": {
        WGMMA: '#include "matmul/kernels/wgmma.cu"\n',
        WGMMA_TF32: '#include "matmul/kernels/wgmma_tf32.cu"\n',
        FFMA: '#include "matmul/kernels/ffma.cu"\n',
        STREAM: '#include "softmax/stream.cu"\n',
        **_by_dtype(CLUSTER, "matmul/kernels/cluster.cu"),
        **_by_dtype(EXTRA_CLUSTER, "matmul/extra/extra_cluster.cu"),
        **_by_dtype(UNALIGNED, "matmul/extra/unaligned_tma.cu", ("tfloat32", "float16", "bfloat16")),
    }
}


def units(arch: str) -> Mapping[str, str]:
    """All units for "sm_90", less those of matmul/extra where they are switched off."""
    every = {**UNITS, **UNITS_OF_ONE.get(arch, {})}
    return every if extra_enabled() else {unit: text for unit, text in every.items() if "matmul/extra/" not in text}


def target(arch: str) -> str:
    """What to ask a compiler for: the GPU's own instructions (wgmma, setmaxnreg) are of "sm_90a", which no other GPU runs."""
    return f"{arch}a" if arch in UNITS_OF_ONE else arch


def unit_of(kernel: str) -> str:
    """The unit that holds a kernel. Raises KeyError for a name that fits none."""
    for unit, start in ((WGMMA_TF32, f"{WGMMA}_tfloat32"), (WGMMA, WGMMA), (FFMA, FFMA)):
        if kernel.startswith(f"{start}_"):
            return unit
    for family in (EXTRA_CLUSTER, EXTRA, UNALIGNED, CLUSTER):
        if kernel.startswith(f"{family}_"):
            return f"{family}_{kernel.removeprefix(f'{family}_').split('_')[0]}"
    if kernel.startswith("softmax_") and "_stream_" in kernel:
        return STREAM
    op, *rest = kernel.split("_")
    unit = f"{op}_{next((name for name in rest if name in KERNELS), '')}" if op == "matmul" else op
    unit = f"{op}_ladder" if rest[:1] == ["ladder"] else unit
    if unit not in UNITS:
        raise KeyError(f"no unit holds a kernel {kernel!r}: there are {', '.join(UNITS)}")
    return unit


def alone(kernel: str, text: str) -> str:
    """A unit's text, of which this kernel alone is compiled, and what is defined without IF_WANTED (one_kernel.cuh): the textbooks'."""
    return f"#define ONE_KERNEL\n#define WANTED_{kernel} , KEEP\n{text}"


def digest(*more: str) -> str:
    """A key for what is compiled from these sources: it changes with any of them, with the units, and with `more`."""
    h = hashlib.sha256(repr((sorted(UNITS.items()), sorted(UNITS_OF_ONE.items()), extra_enabled(), more)).encode())
    for path in sorted(FOLDER.rglob("*.cu*")):
        h.update(path.relative_to(FOLDER).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
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
