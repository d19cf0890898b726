"""Which tile a product through pointers gets on sm_90, and how many programs share its K: the quickest by a model.

A program that is alone on its multiprocessor takes tile_us whatever K is, and k_ns for each 1 of its part of K, most of which it waits.
So others may run beside it, `together` at most, and take no longer until their `load`, the part of the multiprocessor's throughput that
each of them asks for, adds up to more than 1. Programs that share a tile take EXCHANGE_US and SUM_NS more, to add up what each of them has.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from opwise.backends.triton_jit import clusters
from opwise.backends.triton_jit.launch import INTERPRETING, processors
from opwise.backends.triton_jit.matmul_config import TABLE, Config, busy_us, shared_memory
from opwise.backends.tuned import look

SPLITS = (1, 2, 4, 8, 16)  # programs of a tile
EXCHANGE_US = {1: 0.0, 2: 1.0, 4: 1.1, 8: 1.3, 16: 1.7}
SUM_NS = 0.05  # for each of a tile's sums
PAD = 4  # sums between rows in shared memory, so that a warp's rows begin in different banks, on 16 bytes
# Estimates. BM, BN, BK, warps, stages; programs at once, tile_us, k_ns. "unaligned" is 16-bit elements whose rows begin anywhere: they come
# through registers, and stages of shared memory are of no use to them.
TILES = {
    "16-bit": (
        Config(128, 256, 64, 8, 3, 1, 4.0, 14.0),
        Config(128, 128, 64, 8, 3, 1, 3.5, 7.5),
        Config(128, 64, 64, 4, 4, 2, 3.0, 5.0, load=0.7),
        Config(64, 64, 64, 4, 4, 3, 2.8, 3.9, load=0.6),
        Config(32, 64, 64, 4, 4, 3, 2.6, 3.5, load=0.45),
        Config(32, 32, 128, 4, 4, 3, 2.6, 2.5, load=0.4),
        Config(16, 64, 128, 4, 4, 2, 2.6, 2.5, load=0.35),
        Config(16, 32, 128, 4, 4, 3, 2.6, 2.2, load=0.25),
    ),
    "unaligned": (
        Config(128, 128, 32, 8, 2, 1, 4.0, 50.0, load=0.9),
        Config(64, 64, 32, 4, 2, 2, 3.0, 35.0, load=0.4),
        Config(128, 128, 32, 8, 1, 1, 4.0, 36.0, ahead=True),
        Config(128, 64, 64, 8, 1, 1, 3.5, 22.0, ahead=True),
        Config(64, 64, 64, 8, 1, 1, 3.0, 14.0, ahead=True, load=0.7),
        Config(64, 64, 64, 4, 1, 2, 3.0, 20.0, ahead=True, load=0.5),
        Config(64, 64, 32, 4, 1, 3, 3.0, 24.0, ahead=True, load=0.45),
        Config(64, 32, 64, 4, 1, 2, 3.0, 16.0, ahead=True, load=0.4),
        Config(32, 64, 64, 4, 1, 2, 3.0, 16.0, ahead=True, load=0.4),
        Config(32, 32, 64, 4, 1, 3, 3.0, 12.0, ahead=True, load=0.3),
        Config(16, 64, 64, 4, 1, 3, 3.0, 13.0, ahead=True, load=0.3),
        Config(16, 32, 64, 4, 1, 4, 3.0, 10.0, ahead=True, load=0.25),
    ),
    "tf32": (
        Config(128, 128, 32, 8, 3, 1, 4.0, 40.0),
        Config(128, 64, 32, 8, 3, 1, 3.5, 45.0),
        Config(128, 128, 32, 8, 1, 1, 4.0, 40.0, ahead=True),
        Config(128, 64, 32, 8, 1, 1, 3.5, 30.0, ahead=True, load=0.8),
        Config(64, 64, 32, 8, 1, 2, 3.0, 30.0, ahead=True, load=0.5),
        Config(32, 32, 32, 4, 1, 4, 2.8, 22.0, ahead=True, load=0.25),
        Config(64, 64, 32, 4, 3, 2, 3.0, 45.0, load=0.4),
        Config(64, 64, 32, 8, 4, 2, 3.0, 30.0, load=0.5),
        Config(64, 32, 32, 4, 4, 3, 2.8, 20.0, load=0.35),
        Config(32, 64, 32, 4, 4, 3, 2.8, 20.0, load=0.35),
        Config(32, 32, 64, 4, 3, 3, 2.8, 13.0, load=0.25),
        Config(32, 32, 32, 4, 4, 4, 2.8, 14.0, load=0.25),
        Config(16, 64, 64, 4, 4, 2, 2.8, 12.0, load=0.3),
        Config(16, 32, 64, 4, 4, 3, 2.8, 10.0, load=0.25),
    ),
    "ieee": (
        Config(128, 128, 16, 8, 3, 1, 4.0, 95.0),
        Config(128, 64, 16, 8, 3, 1, 3.5, 50.0),
        Config(64, 128, 16, 8, 3, 2, 3.5, 50.0),
        Config(128, 64, 32, 8, 3, 2, 3.5, 48.0),
        Config(64, 64, 16, 4, 3, 2, 3.0, 26.0, load=0.9),
        Config(64, 64, 32, 8, 3, 2, 3.0, 22.0, load=0.95),
        Config(64, 32, 32, 4, 3, 3, 2.8, 20.0, load=0.7),
        Config(32, 64, 32, 4, 3, 3, 2.8, 20.0, load=0.7),
        Config(32, 32, 32, 4, 3, 4, 2.8, 13.0, load=0.58),
        Config(32, 32, 32, 2, 4, 6, 2.8, 18.0, load=0.42),
        Config(16, 64, 32, 4, 3, 4, 2.8, 14.0, load=0.6),
        Config(16, 32, 32, 4, 3, 4, 2.8, 9.0, load=0.6),
    ),
}
# TF32 goes through pointers where tiles through tensor descriptors leave this part of the multiprocessors without one, and the quickest
# here is so many times as quick, by both models.
IDLE, QUICKER = 0.5, 1.2


def exchanged_bytes(config: Config) -> int:
    """Of shared memory that a program's sums take, for the others to read."""
    return config.BM * (config.BN + PAD) * 4 if config.split > 1 else 0


def candidates(kind: str, k: int, shared: int, element_size: int) -> list[Config]:
    """Tiles that fit so many bytes of shared memory, with the numbers of programs each of which has a step of a K at the least."""
    splits = SPLITS if clusters.KNOWN else (1,)
    found = [replace(c, split=s) for c in TILES[kind] for s in splits if s == 1 or s * c.BK <= k]
    return [c for c in found if c.shared_bytes(element_size) <= shared and exchanged_bytes(c) <= clusters.FREE]


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
    if through_maps.tiles(m, n) > (1 - IDLE) * processors(x.device):
        return False
    if look(TABLE, x.device).pick("tfloat32", "tf32", (m, k, n), (through_maps.name,)) is not None:
        return False
    config = quickest_through_pointers("tf32", m, n, k, x)
    return QUICKER * pointers_us(config, m, n, k, processors(x.device)) < busy_us(through_maps, m, n, k, processors(x.device))


def model_holds(device: torch.device) -> bool:
    """Is this such a GPU as the tiles were measured on? Triton's interpreter, which knows no PTX, is none."""
    return device.type == "cuda" and not INTERPRETING and torch.cuda.get_device_capability(device) == (9, 0)
