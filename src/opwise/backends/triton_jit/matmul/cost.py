"""Which configuration a product gets: what opwise tune measured on this GPU, else the one with the least estimate in us."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from opwise.backends.triton_jit.common import clusters
from opwise.backends.triton_jit.common.launch import INTERPRETING, processors
from opwise.backends.triton_jit.matmul import extra
from opwise.backends.triton_jit.matmul.configurations import FLAT_CONFIGS, POINTER_CONFIGS, TILES, TRIALS, Config
from opwise.backends.tuned import look

TABLE = "triton_jit/matmul"  # of opwise tune
# TF32 of no more tiles through tensor descriptors than one an SM goes through pointers where that is so many times as quick, by both
# estimates; from the shortest K on that was measured.
QUICKER, K_FROM = 1.1, 128


def shared_memory(device: torch.device) -> int:
    """Bytes a program may have, asked for; 99 KiB, the least of any GPU here, where torch does not say."""
    if device.type != "cuda":
        return 2**18
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 99 * 1024))


# -- through tensor descriptors ----------------------------------------------------------------------------------------------------------


def busy_us(config: Config, m: int, n: int, k: int, multiprocessors: int) -> float:
    """How long the SM with the most tiles is busy.

    A program that has an SM to itself is taken to be no faster than beside the others it could have: nobody fills its pauses. Clusters keep
    within groups of SMs, of which some are left over: an eighth, which is more than was seen. No pair is.
    """
    if config.split_k > 1:
        usable = multiprocessors if config.split_k == 2 else multiprocessors * 7 // 8
        at_once = max(usable // config.split_k, 1) * config.ctas_per_sm
        waves = -(-config.tiles(m, n) // at_once)
        return waves * config.ctas_per_sm * (config.tile_us + k / config.split_k * config.k_ns / 1000)
    tiles = max(-(-config.tiles(m, n) // multiprocessors), config.ctas_per_sm)
    return tiles * (config.tile_us + k * config.k_ns / 1000)


def quickest(configs: tuple[Config, ...], m: int, n: int, k: int, x: Tensor) -> Config:
    """The configuration measured to be the quickest on this GPU for these sizes; else the quickest by `busy_us`, with the numbers fitted to
    this GPU or the shipped ones; of equals, the first. x: a factor; of float32 for TF32.

    Raises ValueError where none fits the GPU's shared memory.
    """
    kind, dtype = ("tf32", "tfloat32") if x.dtype == torch.float32 else ("16-bit", str(x.dtype).removeprefix("torch."))
    shared = shared_memory(x.device)
    by_name = {c.name: c for c in (*configs, *TRIALS[kind]) if c.shared_bytes(x.element_size()) <= shared}
    choices = look(TABLE, x.device)
    if (name := choices.pick(dtype, kind, (m, k, n), by_name)) is not None:
        return by_name[name]
    # Where all are half empty, as TF32's are of up to 32 columns, none is worse off for it.
    measured = {name: c for name, c in by_name.items() if c.measured_at(m, n, processors(x.device))} or by_name
    fitting = [choices.fitted(kind, name, c) for name, c in measured.items() if c in configs or choices.numbers(kind, name)]
    if not fitting:
        raise ValueError(f"no tile fits {shared} bytes of shared memory: {', '.join(map(str, configs))}; take the kernels without TMA")
    return min(fitting, key=lambda c: busy_us(c, m, n, k, processors(x.device)))


# -- through pointers --------------------------------------------------------------------------------------------------------------------


def pointers_us(config: Config, m: int, n: int, k: int, multiprocessors: int) -> float:
    """How long the SM with the most programs is busy. A program alone on its SM takes tile_us and k_ns for each 1 of its part of K, most of
    which it waits: others run beside it, `ctas_per_sm` at most, and take no longer until their `load` adds up to more than 1."""
    usable = multiprocessors if config.split_k <= 2 else multiprocessors * 7 // 8
    places = max(usable // config.split_k, 1) * config.split_k
    beside = -(-config.tiles(m, n) * config.split_k // places)
    waves = -(-beside // config.ctas_per_sm)
    exchange = 0.0
    if config.split_k > 1:
        from opwise.backends.triton_jit.matmul.extra.tiles import EXCHANGE_US, SUM_NS

        exchange = EXCHANGE_US[config.split_k] + SUM_NS / 1000 * config.BM * config.BN
    steps = k / config.split_k * config.k_ns / 1000
    return waves * (config.tile_us + exchange) + max(waves, beside * config.load) * steps


def candidates(kind: str, k: int, shared: int, element_size: int) -> list[Config]:
    """Of the tiles that fit so many bytes of shared memory, each with the split_k that leave a program a step of K at the least."""
    found = list(TILES.get(kind, ()))
    if extra.enabled():
        from opwise.backends.triton_jit.matmul.extra import tiles

        splits = tiles.SPLITS if clusters.KNOWN else (1,)
        found = [replace(c, split_k=s) for c in (*found, *tiles.TILES.get(kind, ())) for s in splits if s == 1 or s * c.BK <= k]
        found = [c for c in found if tiles.exchanged_bytes(c) <= tiles.FREE]
    return [c for c in found if c.shared_bytes(element_size) <= shared]


def through_pointers(kind: str, m: int, n: int, k: int, x: Tensor) -> Config:
    """x: a factor, of `kind`'s type. By `pointers_us` on sm_90; elsewhere, and of a kind without tiles there, what fills the GPU."""
    config = quickest_through_pointers(kind, m, n, k, x) if model_holds(x.device) else None
    return config or filling((FLAT_CONFIGS if m <= 16 else POINTER_CONFIGS)[kind.removeprefix("odd ")], m, n, x)


def quickest_through_pointers(kind: str, m: int, n: int, k: int, x: Tensor) -> Config | None:
    """By `pointers_us`; of equals, the first. None of a kind without tiles."""
    found = candidates(kind, k, shared_memory(x.device), x.element_size())
    return min(found, key=lambda c: pointers_us(c, m, n, k, processors(x.device)), default=None)


def filling(configs: tuple[Config, ...], m: int, n: int, x: Tensor) -> Config:
    """The largest tile that gives every SM one, else the smallest."""
    fitting = [c for c in configs if c.shared_bytes(x.element_size()) <= shared_memory(x.device)] or [configs[-1]]
    return next((c for c in fitting if c.tiles(m, n) >= processors(x.device)), fitting[-1])


def quicker_through_pointers(through_maps: Config, m: int, n: int, k: int, x: Tensor) -> bool:
    """Is a TF32 product of few tiles quicker through pointers than by this tile? Not where opwise tune found this tile. x: a factor."""
    if k < K_FROM or through_maps.tiles(m, n) > processors(x.device):
        return False
    if look(TABLE, x.device).pick("tfloat32", "tf32", (m, k, n), (through_maps.name,)) is not None:
        return False
    config = quickest_through_pointers("tf32", m, n, k, x)
    busy = busy_us(through_maps, m, n, k, processors(x.device))
    return config is not None and QUICKER * pointers_us(config, m, n, k, processors(x.device)) < busy


def model_holds(device: torch.device) -> bool:
    """Is this such a GPU as the tiles were measured on? Triton's interpreter, which knows no PTX, is none."""
    return device.type == "cuda" and not INTERPRETING and torch.cuda.get_device_capability(device) == (9, 0)
