"""Edits of Numba's PTX that add what Numba cannot express: tensor maps as parameters (128 bytes by value), and thread block clusters.

A map among the parameters is what CUDA C++ writes as `const __grid_constant__ CUtensorMap`: TMA reads it where the launch put
it, so it needs no memory of its own on the device, no copy before the launch and no fence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAP_BYTES = 128  # of a CUtensorMap


@dataclass(frozen=True)
class ByValue:
    """A kernel argument passed by value: MAP_BYTES at `address`; `memory` keeps them alive."""

    address: int
    memory: object


def with_maps(ptx: str, count: int) -> str:
    """The kernel's PTX with its first `count` parameters turned from addresses of tensor maps into the maps, and their uses into addresses.

    In Numba's Python they are int64 values. Raises RuntimeError where Numba wrote other PTX than loads of the whole parameter.
    """
    for i in range(count):
        ptx, declared = re.subn(rf"\.param \.u64 ([\w$]+_param_{i})(?=[,\s)])", rf".param .align 64 .b8 \1[{MAP_BYTES}]", ptx)
        read = rf"ld\.param\.u64\s+(%\w+), \[([\w$]+_param_{i})\];"
        ptx, loaded = re.subn(read, r"mov.b64 \1, \2;\n\tcvta.param.u64 \1, \1;", ptx)
        other = re.search(rf".*\[[\w$]+_param_{i}\b[^\[]*\]", ptx)
        if declared != 1 or loaded == 0 or other:
            found = other[0].strip() if other else f"{declared} declarations and {loaded} loads"
            raise RuntimeError(f"Numba's PTX has {found!r} of parameter {i}, not one declaration and loads: it cannot be made a tensor map")
    return ptx


def in_clusters(ptx: str, blocks: int) -> str:
    """The kernel's PTX with its grid made of clusters of so many blocks in a row, as CUDA C++'s __cluster_dims__ does it.

    Raises RuntimeError where Numba wrote no bound on the block's threads, behind which this goes.
    """
    if blocks == 1:
        return ptx
    ptx, found = re.subn(r"(\.maxntid [^\n]*\n)", rf"\1.explicitcluster\n.reqnctapercluster {blocks}, 1, 1\n", ptx)
    if found != 1:
        raise RuntimeError(f"Numba's PTX has {found} .maxntid, not one: it cannot be given clusters of {blocks} blocks")
    return ptx
