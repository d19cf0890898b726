"""What no kernel should have, spills and double-precision instructions, and the kernels that are known to have them, with the reason."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Blemish:
    """Kernels of a backend on some architectures that spill, or compute in double, known and accepted.

    `kernel` must match the whole name as `compile_only` gives it; each kernel that it matches must have what is listed.
    """

    what: str  # "spill" or "double"
    backends: tuple[str, ...]
    archs: tuple[str, ...]
    kernel: str
    reason: str

    def names(self, backend: str, arch: str, kernel: str) -> bool:
        return backend in self.backends and (arch in self.archs or not self.archs) and re.fullmatch(self.kernel, kernel) is not None


TRITON = "8 bytes, of ptxas 12.8 as Triton 3.7 brings it along; a tile's shape is Triton's to schedule"
CUDA_CPP = ("torch_inline", "cupy_raw")
KNOWN: tuple[Blemish, ...] = (
    Blemish("double", CUDA_CPP, (), "gelu_float32_textbook", "the classroom kernel: its constants are doubles, and that is its point"),
    Blemish("spill", CUDA_CPP, ("sm_80", "sm_86", "sm_89"), "matmul_tfloat32_128x256_v16",
            "32 bytes: of 255 registers the tile's accumulators take 128; for sm_90 and sm_100 ptxas finds room for the rest"),
    Blemish("spill", CUDA_CPP, ("sm_90",), "matmul_cluster_float32_simt_64x32_v4_s1",
            "4 bytes: held to 128 registers for two blocks of 256 threads a multiprocessor; copies of 4 bytes, of rows off alignment only"),
    Blemish("spill", ("triton_jit",), ("sm_100",), "matmul: (float32, 128x64x16|b?float16, 16x64x128)",
            "8 bytes, by Triton's ptxas: stored before the loop, loaded behind it, so once a launch"),
    Blemish("spill", ("triton_jit",), ("sm_120",), "matmul: b?float16, 16x64x128",
            "8 bytes, by Triton's ptxas, as for sm_100"),
    Blemish("spill", ("triton_jit",), ("sm_120",), "matmul: tfloat32, 32x32x32, unaligned, wide offsets",
            "8 bytes, by Triton's ptxas: rows off alignment of matrices beyond 2^31 elements only"),
    Blemish("spill", ("numba_cuda",), ("sm_120",), "softmax: float16 1 blocks of 512 a row",
            "40 bytes: held to 64 registers for 1024 threads a multiprocessor, of which the row's part takes 32"),
    Blemish("spill", ("numba_cuda",), ("sm_120",), "mean: float32 vector",
            "8 bytes: held to 40 registers for the 1536 threads of a multiprocessor"),
    Blemish("spill", ("triton_jit",), ("sm_86", "sm_89"), "matmul: (tiles|grouped), float16",
            "16 bytes, by Triton's ptxas: rungs of the ladder, there to be read; the tile is an H200's"),
    Blemish("spill", ("triton_jit",), ("sm_100",), "matmul: float32, 16x64x32, unaligned",
            "8 bytes, by Triton's ptxas: two values that each step loads again; rows off alignment only"),
    Blemish("spill", ("triton_jit",), ("sm_80",), "matmul: tfloat32, pointers_64x64x32/4/3/TT, unaligned",
            "8 bytes, by Triton's ptxas: both factors transposed and rows off alignment only"),
)  # fmt: skip


# Kernels whose sums have the registers that their multiply-adds want, on sm_90, and the most that they then have: with 203 instead of 194
# the first moved its sums about and took 4 % longer, right as ever.
MOST_REGISTERS = {"matmul_ffma_float32_tma_128x128_8x16": 196}


@dataclass(frozen=True)
class Seen:
    """Of one kernel: bytes spilled, loads and stores of the stack, double-precision instructions."""

    kernel: str
    spilled_bytes: int
    local: int
    double: int

    def has(self, what: str) -> bool:
        return bool(self.double) if what == "double" else bool(self.spilled_bytes or self.local)


def complaints(backend: str, arch: str, seen: Iterable[Seen]) -> list[str]:
    """A line for each blemish that is not known, and for each known one that a kernel no longer has."""
    found = []
    for kernel in seen:
        for what in ("spill", "double"):
            listed = any(k.what == what and k.names(backend, arch, kernel.kernel) for k in KNOWN)
            if kernel.has(what) and not listed:
                found.append(f"{kernel} on {arch}: a {what} that tests/kernel_facts.py does not list")
            if listed and not kernel.has(what):
                found.append(f"{kernel} on {arch}: listed in tests/kernel_facts.py for a {what} that it no longer has: take it out")
    return found


def stale(backend: str, arch: str, names: Collection[str]) -> list[str]:
    """Entries of KNOWN for that backend and architecture that name none of its kernels."""
    mine = [k for k in KNOWN if backend in k.backends and (arch in k.archs or not k.archs)]
    return [f"{k} names no kernel" for k in mine if not any(k.names(backend, arch, name) for name in names)]
