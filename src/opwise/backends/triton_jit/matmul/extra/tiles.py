"""Configurations of cluster_reduce.py on sm_90 for unaligned rows of 16 bits or TF32. These are loaded element by element, 16-bit ones
through registers, where stages in shared memory do not help: hence prefetch. It makes float32 (FFMA) a tenth slower with every tile."""

from __future__ import annotations

from opwise.backends.triton_jit.matmul.configurations import POINTER_CONFIGS, Config


def _of(*tiles: tuple[int, int, int, int]) -> tuple[Config, ...]:
    return tuple(Config(*tile, 1, prefetch=True) for tile in tiles)


TILES = {  # instead of POINTER_CONFIGS
    "unaligned": _of((128, 128, 32, 8), (128, 64, 64, 8), (64, 64, 64, 4), (32, 32, 64, 4), (16, 32, 64, 4)),
    "tf32": (*POINTER_CONFIGS["tf32"], *_of((128, 64, 32, 8), (32, 32, 32, 4))),
    "odd tf32": (*_of((128, 128, 32, 8), (128, 64, 32, 8), (64, 64, 32, 8), (32, 32, 32, 4)), Config(16, 32, 64, 4, 4)),
}
