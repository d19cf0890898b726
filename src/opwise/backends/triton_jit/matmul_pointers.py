"""Which tile a product through pointers gets on sm_90, and how many programs share its K: the quickest by a model.

A program that is alone on its multiprocessor takes tile_us whatever K is, and k_ns for each 1 of its part of K, most of which it waits.
So others may run beside it, `together` at most, and take no longer until their `load`, the part of the multiprocessor's throughput that
each of them asks for, adds up to more than 1. Programs that share a tile take EXCHANGE_US and SUM_NS more, to add up what each of them has.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from opwise.backends.triton_jit.common import clusters
from opwise.backends.triton_jit.common.launch import INTERPRETING, processors
from opwise.backends.triton_jit.matmul_config import TABLE, Config, busy_us, shared_memory
from opwise.backends.tuned import look

SPLITS = (1, 2, 4, 8, 16)  # programs of a tile
EXCHANGE_US = {1: 0.0, 2: 0.99, 4: 1.06, 8: 1.52, 16: 2.21}
SUM_NS = 0.059  # for each of a tile's sums
FREE = 48 * 1024  # bytes of shared memory that a kernel may have without having been asked
PAD = 4  # sums between rows in shared memory, so that a warp's rows begin in different banks, on 16 bytes
# BM, BN, BK, warps, stages; programs at once, tile_us, k_ns, as fitted to 3399 times of 22 products on an H200 (docs/lab/matmul-triton.md).
# "unaligned" and "odd tf32": rows of 16 bits or of TF32 that begin anywhere. They come element by element, those of 16 bits through
# registers, where stages of shared memory are of no use. float32's by multiply-adds, "ieee", lose a tenth by it, whichever tile.
TILES = {
    "16-bit": (
        Config(128, 256, 64, 8, 3, 1, 3.41, 9.47, load=0.30),
        Config(128, 128, 64, 8, 3, 1, 2.79, 7.70, load=0.30),
        Config(128, 64, 64, 4, 4, 1, 2.51, 5.70, load=0.30),
        Config(64, 64, 64, 4, 4, 4, 2.28, 4.66),
        Config(32, 64, 64, 4, 4, 8, 2.22, 4.59, load=0.90),
        Config(32, 32, 128, 4, 4, 7, 2.22, 3.06),
        Config(16, 64, 128, 4, 4, 4, 2.29, 2.96, load=0.89),
        Config(16, 32, 128, 4, 4, 8, 2.25, 2.52, load=0.80),
    ),
    "unaligned": (
        Config(128, 128, 32, 8, 1, 2, 3.10, 24.03, ahead=True, load=0.95),
        Config(128, 64, 64, 8, 1, 2, 4.41, 13.09, ahead=True),
        Config(64, 64, 64, 8, 1, 3, 2.74, 12.44, ahead=True, load=0.78),
        Config(64, 64, 64, 4, 1, 2, 2.57, 14.40, ahead=True, load=0.66),
        Config(64, 64, 32, 4, 1, 4, 3.46, 20.54, ahead=True, load=0.41),
        Config(64, 32, 64, 4, 1, 3, 2.28, 12.44, ahead=True, load=0.57),
        Config(32, 32, 64, 4, 1, 6, 1.73, 10.98, ahead=True, load=0.56),
        Config(16, 64, 64, 4, 1, 5, 2.20, 10.66, ahead=True, load=0.67),
        Config(16, 32, 64, 4, 1, 8, 2.10, 9.83, ahead=True, load=0.41),
    ),
    "tf32": (
        Config(128, 64, 32, 8, 3, 2, 3.05, 26.98, load=0.88),
        Config(128, 64, 32, 8, 1, 2, 2.95, 28.16, ahead=True, load=0.80),
        Config(64, 64, 32, 8, 1, 2, 2.13, 22.47, ahead=True, load=0.78),
        Config(32, 32, 32, 4, 1, 8, 2.10, 17.58, ahead=True, load=0.29),
        Config(64, 64, 32, 4, 3, 7, 2.72, 21.16, load=0.82),
        Config(32, 64, 32, 4, 4, 8, 2.44, 9.72, load=0.72),
        Config(32, 32, 64, 4, 3, 8, 2.49, 7.81, load=0.55),
        Config(32, 32, 32, 4, 4, 8, 2.58, 8.84, load=0.45),
        Config(16, 64, 64, 4, 4, 4, 2.52, 6.71, load=0.69),
        Config(16, 32, 64, 4, 4, 8, 2.71, 5.12, load=0.58),
    ),
    "odd tf32": (
        Config(128, 128, 32, 8, 1, 1, 5.25, 49.62, ahead=True, load=0.30),
        Config(128, 64, 32, 8, 1, 1, 2.82, 26.71, ahead=True, load=0.30),
        Config(64, 64, 32, 8, 1, 3, 2.50, 20.92, ahead=True, load=0.86),
        Config(32, 32, 32, 4, 1, 4, 1.19, 20.10, ahead=True, load=0.31),
        Config(32, 32, 64, 4, 3, 6, 2.59, 8.65, load=0.79),
        Config(32, 32, 32, 4, 4, 7, 2.31, 9.60, load=0.72),
        Config(16, 64, 64, 4, 4, 5, 3.60, 8.91, load=0.98),
        Config(16, 32, 64, 4, 4, 7, 3.17, 4.99),
    ),
    "ieee": (
        Config(128, 128, 16, 8, 3, 1, 2.45, 113.07),
        Config(128, 64, 16, 8, 3, 2, 3.04, 60.30, load=0.90),
        Config(64, 128, 16, 8, 3, 2, 3.04, 57.87, load=0.95),
        Config(128, 64, 32, 8, 3, 2, 3.45, 57.64, load=0.94),
        Config(64, 64, 16, 4, 3, 6, 2.56, 36.82, load=0.79),
        Config(64, 64, 32, 8, 3, 3, 2.75, 33.04, load=0.96),
        Config(64, 32, 32, 4, 3, 5, 2.31, 23.35, load=0.82),
        Config(32, 64, 32, 4, 3, 7, 2.76, 22.71, load=0.73),
        Config(32, 32, 32, 4, 3, 7, 2.08, 14.96, load=0.66),
        Config(16, 64, 32, 4, 3, 5, 1.77, 16.06, load=0.64),
        Config(16, 32, 32, 4, 3, 8, 1.87, 16.79, load=0.43),
    ),
}
# TF32 of no more tiles through tensor descriptors than one a multiprocessor goes through pointers where that is so many times as quick, by
# both models; from the shortest K on that was measured.
QUICKER, K_FROM = 1.1, 128


def exchanged_bytes(config: Config) -> int:
    """Of shared memory that a program's sums take, for the others to read."""
    return config.BM * (config.BN + PAD) * 4 if config.split > 1 else 0


def candidates(kind: str, k: int, shared: int, element_size: int) -> list[Config]:
    """Tiles that fit so many bytes of shared memory, with the numbers of programs each of which has a step of a K at the least."""
    splits = SPLITS if clusters.KNOWN else (1,)
    found = [replace(c, split=s) for c in TILES[kind] for s in splits if s == 1 or s * c.BK <= k]
    return [c for c in found if c.shared_bytes(element_size) <= shared and exchanged_bytes(c) <= FREE]


def pointers_us(config: Config, m: int, n: int, k: int, multiprocessors: int) -> float:
    """How long the multiprocessor with the most programs is busy, in microseconds. Clusters leave an eighth over, as in `busy_us`."""
    usable = multiprocessors if config.split <= 2 else multiprocessors * 7 // 8
    places = max(usable // config.split, 1) * config.split
    beside = -(-config.tiles(m, n) * config.split // places)
    waves = -(-beside // config.together)
    exchange = EXCHANGE_US[config.split] + (SUM_NS / 1000 * config.BM * config.BN if config.split > 1 else 0.0)
    steps = k / config.split * config.k_ns / 1000
    return waves * (config.tile_us + exchange) + max(waves, beside * config.load) * steps


def quickest_through_pointers(kind: str, m: int, n: int, k: int, x: Tensor) -> Config:
    """x: a factor, of `kind`'s type. Of equals the first."""
    shared = 2**18 if x.device.type != "cuda" else shared_memory(x.device)
    found = candidates(kind, k, shared, x.element_size())
    return min(found, key=lambda c: pointers_us(c, m, n, k, processors(x.device)))


def quicker_through_pointers(through_maps: Config, m: int, n: int, k: int, x: Tensor) -> bool:
    """Is a TF32 product of few tiles quicker through pointers than by this tile? Not where opwise tune found this tile. x: a factor."""
    if k < K_FROM or through_maps.tiles(m, n) > processors(x.device):
        return False
    if look(TABLE, x.device).pick("tfloat32", "tf32", (m, k, n), (through_maps.name,)) is not None:
        return False
    config = quickest_through_pointers("tf32", m, n, k, x)
    return QUICKER * pointers_us(config, m, n, k, processors(x.device)) < busy_us(through_maps, m, n, k, processors(x.device))


def model_holds(device: torch.device) -> bool:
    """Is this such a GPU as the tiles were measured on? Triton's interpreter, which knows no PTX, is none."""
    return device.type == "cuda" and not INTERPRETING and torch.cuda.get_device_capability(device) == (9, 0)
