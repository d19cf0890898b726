"""Kernel parameters that are tensor maps, 128 bytes by value, of which Numba knows nothing: its kernels take no struct.

A map among the parameters is what CUDA C++ writes as `const __grid_constant__ CUtensorMap`: the copy engine reads it where the launch put
it, so it needs no memory of its own on the device, no copy before the launch and no fence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAP_BYTES = 128  # of a CUtensorMap


@dataclass(frozen=True)
class ByValue:
    """MAP_BYTES at `address` that a launch hands over themselves, instead of where they lie; `memory` keeps them alive."""

    address: int
    memory: object


def with_maps(ptx: str, count: int) -> str:
    """The kernel's PTX with its first `count` parameters turned from addresses of tensor maps into the maps, and their uses into addresses.

    In Numba's Python they are int64 values, of which each is loaded once. Raises RuntimeError where Numba wrote other PTX than expected.
    """
    for i in range(count):
        ptx, declared = re.subn(rf"\.param \.u64 ([\w$]+_param_{i})(?=[,\s)])", rf".param .align 64 .b8 \1[{MAP_BYTES}]", ptx)
        read = rf"ld\.param\.u64\s+(%\w+), \[([\w$]+_param_{i})\];"
        ptx, loaded = re.subn(read, r"mov.b64 \1, \2;\n\tcvta.param.u64 \1, \1;", ptx)
        if (declared, loaded) != (1, 1):
            raise RuntimeError(f"parameter {i} is declared {declared} and read {loaded} times in Numba's PTX, not once: it cannot be a map")
    return ptx
