"""One row per kernel and architecture: its implementation, its facts, or why there are none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from opwise.backends.protocol import BackendUnavailable
from opwise.inspecting.compilers import Compiled, compiled, variants
from opwise.inspecting.facts import Facts, facts

# Bytes of shared memory a block may have, asked for: CUDA C++ Programming Guide, technical specifications per compute capability.
MOST_SHARED = {"sm_75": 65536, "sm_80": 166912, "sm_86": 101376, "sm_89": 101376, "sm_90": 232448, "sm_100": 232448, "sm_120": 101376}
# A kernel belongs to the variant that is in its name, else to the unnamed one; these variants run the unnamed one's, but for Hopper's own.
RUNS: Mapping[tuple[str, str], re.Pattern[str]] = {
    ("matmul", "mma"): re.compile(
        r"(?!.*(wgmma|by TMA|textbook|ladder|plain|transposed)|matmul_(ffma|cluster|unaligned_tma|extra_cluster)_)"
    ),
    # Not those whose order of summation is by the place of a row, nor what takes few rows alone.
    ("matmul", "invariant"): re.compile(
        r"(?!.*(textbook|ladder|plain|tiles|grouped|gemv|cluster|unaligned|extra|stream_k|_w\d+_s\d|_s8|_s16|(mma|fma)_\d+x\d+_s|pointers.*split_k))"
    ),
    ("matmul", "persistent"): re.compile(r"matmul_wgmma_b?float16_128x256$"),
    ("matmul", "pointers"): re.compile(r"(?!.*(descriptors|textbook|tiles|grouped|plain))"),
}
LADDER = ("tma",)  # rungs whose names are words of other kernels


@dataclass(frozen=True)
class Row:
    """`status`: ok, or n/a with its reason. Bytes and registers as in Facts; `spilled_bytes` as ptxas reports, else the stack."""

    implementation: str
    kernel: str
    dtype: str
    arch: str
    status: str = "ok"
    reason: str = ""
    registers: int | None = None
    spilled_bytes: int | None = None
    stack_bytes: int | None = None
    shared_bytes: int | None = None
    dynamic_shared_bytes: int | None = None
    instructions: int | None = None
    classes: Mapping[str, int] = field(default_factory=dict)
    accesses: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


Found = tuple[tuple[Row, Compiled], ...]


def inspected(backend: str, op: str, arch: str, dtype: str | None = None) -> tuple[tuple[str, ...], Found]:
    """The op's variants in that backend, and its kernels' rows with the compiled kernels. A kernel of two variants has two rows.

    Raises ToolMissing without a disassembler."""
    try:
        names = variants(backend, op)
        kernels = compiled(backend, op, arch, dtype)
    except BackendUnavailable as error:
        return _known(backend, op), (_absent(backend, op, arch, str(error)),)
    except ImportError as error:
        return (), (_absent(backend, op, arch, f"its library cannot be imported ({error}): opwise backends says what to do"),)
    cubins = list({id(kernel.cubin): kernel.cubin for kernel in kernels if kernel.cubin}.values())
    read = {id(cubin): found for cubin, found in zip(cubins, facts(cubins, arch), strict=True)}
    found: list[tuple[Row, Compiled]] = []
    for kernel in kernels:
        for variant in variants_of_kernel(kernel.kernel, op, names):
            name = f"{backend}/{op}" + (f":{variant}" if variant else "")
            own = read[id(kernel.cubin)][kernel.symbol] if kernel.cubin else None
            found.append((_row(name, kernel, arch, own), kernel))
    return names, tuple(found)


def _known(backend: str, op: str) -> tuple[str, ...]:
    try:
        return variants(backend, op)
    except Exception:  # a backend that is unavailable may not even import
        return ()


def _absent(backend: str, op: str, arch: str, reason: str) -> tuple[Row, Compiled]:
    return Row(f"{backend}/{op}", "", "", arch, "n/a", reason), Compiled("")


def variants_of_kernel(kernel: str, op: str, names: Iterable[str]) -> list[str]:
    """The op's variants, of `names`, that run the kernel."""
    words = re.split(r"[^a-z0-9]+", kernel)
    if "ladder" in words:  # other kernels' names may hold a rung's, as "tma"
        return [name for name in names if name in words]
    named = [name for name in names if name in words and name not in LADDER and (op, name) not in RUNS]
    return (named or [""]) + [name for name in names if (op, name) in RUNS and RUNS[op, name].match(kernel)]


def _row(name: str, kernel: Compiled, arch: str, own: Facts | None) -> Row:
    if own is None:
        return Row(name, kernel.kernel, kernel.dtype, arch, "n/a", kernel.reason)
    shared = own.shared_bytes + (kernel.dynamic_shared or 0)
    most = MOST_SHARED[arch]
    too_much = f"asks for {shared} bytes of shared memory where a block has {most}: a smaller tile is chosen there" if shared > most else ""
    spilled = own.stack_bytes if kernel.spilled_bytes is None else kernel.spilled_bytes
    return Row(name, kernel.kernel, kernel.dtype, arch, "n/a" if too_much else "ok", too_much, own.registers, spilled, own.stack_bytes,
               own.shared_bytes, kernel.dynamic_shared, own.instructions, dict(own.classes),
               {space: dict(widths) for space, widths in own.accesses.items()})  # fmt: skip
