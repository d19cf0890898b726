"""Configurations of cluster_reduce.py on sm_90, for rows of 16 bits or of TF32 that begin anywhere: they come element by element, those of
16 bits through registers, where stages of shared memory are of no use. float32's FFMA loses a tenth by it, whichever tile."""

from __future__ import annotations

from opwise.backends.triton_jit.matmul.configurations import POINTER_CONFIGS, Config


def _of(*tiles: tuple[int, int, int, int]) -> tuple[Config, ...]:
    return tuple(Config(*tile, 1, prefetch=True) for tile in tiles)


TILES = {  # in the place of POINTER_CONFIGS
    "unaligned": _of((128, 128, 32, 8), (128, 64, 64, 8), (64, 64, 64, 4), (32, 32, 64, 4), (16, 32, 64, 4)),
    "tf32": (*POINTER_CONFIGS["tf32"], *_of((128, 64, 32, 8), (32, 32, 32, 4))),
    "odd tf32": (*_of((128, 128, 32, 8), (128, 64, 32, 8), (64, 64, 32, 8), (32, 32, 32, 4)), Config(16, 32, 64, 4, 4)),
}
