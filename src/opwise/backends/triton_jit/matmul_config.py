"""How matmul's programs share the product: tiles, steps, warps, and which of them a product gets."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from opwise.backends.triton_jit.common.launch import processors
from opwise.backends.tuned import look

TABLE = "triton_jit/matmul"  # of opwise tune
NARROWEST = 32  # columns of a tile
GROUP = 8  # tile rows that programs walk down together


@dataclass(frozen=True)
class Config:
    """A tile of the product, a step along K, warps a program, tiles in flight; and, for `quickest`, what a tile was measured to take.

    together: programs that a multiprocessor holds at once. tile_us: microseconds that a tile takes whatever K is, k_ns: nanoseconds for
    each 1 of K, both of a multiprocessor that has `together` programs, so that each of them takes `together` times as long.
    Where `split` programs share a tile, K is the part of it that one has. load is matmul_pointers.py's.
    """

    BM: int
    BN: int
    BK: int
    warps: int
    stages: int
    together: int = 1
    tile_us: float = 0.0
    k_ns: float = 1.0
    resident: bool = False  # one program a place of a multiprocessor, which goes on to its next tile
    split: int = 1  # programs, a cluster, that share a tile's K
    pingpong: bool = False  # by two warpgroups that take turns, in matmul_pingpong.py
    few: bool = False  # rows of C, BM of them at most, are wgmma's columns, in matmul_split.py
    rounds: int = 1  # see `worth`
    most: int = 2**31  # tiles of a product, as measured
    ahead: bool = False  # a step's elements wait in registers while the last one's are multiplied, in matmul_shared_k.py
    load: float = 1.0  # the part of a multiprocessor's throughput that one program asks for

    def __str__(self) -> str:
        return f"{self.BM}x{self.BN}x{self.BK}"

    @property
    def name(self) -> str:
        """By which a tuned table knows it: all that makes another kernel of it."""
        flags = [f.name for f in fields(self) if getattr(self, f.name) is True]
        return "/".join([f"{self}/{self.warps}/{self.stages}", *flags, *([f"split{self.split}"] if self.split > 1 else [])])

    @property
    def options(self) -> dict[str, Any]:
        """Compile options. Fusion is pinned, since Triton's default differs between versions: a float32 dot is a chain of FMAs."""
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}

    def shared_bytes(self, element_size: int) -> int:
        """What the tiles in flight take; float32 factors can be copied once more, in the order the tensor core wants."""
        return (self.BM + self.BN) * self.BK * element_size * self.stages

    def tiles(self, m: int, n: int) -> int:
        return -(-m // self.BM) * -(-n // self.BN)

    def worth(self, m: int, n: int, multiprocessors: int) -> bool:
        """May a product get it? Tiles by turns were measured from `rounds` tiles a multiprocessor on. A tile that is half empty takes as
        long as a full one."""
        if self.few:
            return m <= self.BM
        if self.tiles(m, n) > self.most or (self.split > 1 and -(-n // self.BN) > 65535):  # the grid's y
            return False
        enough = -(-self.tiles(m, n) // multiprocessors) >= self.rounds
        return (n > self.BN // 2 or self.BN <= NARROWEST) and enough


def filling(configs: tuple[Config, ...], m: int, n: int, x: Tensor) -> Config:
    """The largest tile that gives every multiprocessor one, else the smallest."""
    shared = 2**18 if x.device.type != "cuda" else shared_memory(x.device)
    fitting = [c for c in configs if c.shared_bytes(x.element_size()) <= shared] or [configs[-1]]
    return next((c for c in fitting if c.tiles(m, n) >= processors(x.device)), fitting[-1])


def shared_memory(device: torch.device) -> int:
    """Bytes a program may have, asked for; 99 KiB, the least of any GPU here, where torch does not say."""
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 99 * 1024))


# Tiles without numbers: a product gets one only on a GPU where opwise tune has measured it to be the quickest.
TRIALS = {
    "16-bit": (Config(256, 128, 64, 8, 3), Config(128, 256, 64, 8, 4), Config(128, 64, 128, 4, 4), Config(64, 256, 64, 4, 4)),
    "tf32": (),
}


def quickest(configs: tuple[Config, ...], m: int, n: int, k: int, x: Tensor) -> Config:
    """The tile measured to be the quickest on this GPU for these sizes; else the one with which the busiest multiprocessor is done first
    (`busy_us`), by the numbers fitted to this GPU or the shipped ones; of equals, the first. x: a factor; of float32 for TF32.

    Raises ValueError where none fits the GPU's shared memory.
    """
    kind, dtype = ("tf32", "tfloat32") if x.dtype == torch.float32 else ("16-bit", str(x.dtype).removeprefix("torch."))
    shared = 2**18 if x.device.type != "cuda" else shared_memory(x.device)
    by_name = {c.name: c for c in (*configs, *TRIALS[kind]) if c.shared_bytes(x.element_size()) <= shared}
    choices = look(TABLE, x.device)
    if (name := choices.pick(dtype, kind, (m, k, n), by_name)) is not None:
        return by_name[name]
    # Where all are half empty, as TF32's are of up to 32 columns, none is worse off for it.
    worth = {name: c for name, c in by_name.items() if c.worth(m, n, processors(x.device))} or by_name
    fitting = [choices.fitted(kind, name, c) for name, c in worth.items() if c in configs or choices.numbers(kind, name)]
    if not fitting:
        raise ValueError(f"no tile fits {shared} bytes of shared memory: {', '.join(map(str, configs))}; take the kernels without TMA")
    return min(fitting, key=lambda c: busy_us(c, m, n, k, processors(x.device)))


def busy_us(config: Config, m: int, n: int, k: int, multiprocessors: int) -> float:
    """How long the multiprocessor with the most tiles is busy, in microseconds.

    A program that has it to itself is taken to be no faster than beside the others it could have: nobody fills its pauses. Clusters have
    their blocks within one group of multiprocessors, of which some are left over: an eighth, which is more than was seen. No pair is.
    """
    if config.split > 1:
        at_once = max((multiprocessors if config.split == 2 else multiprocessors * 7 // 8) // config.split, 1) * config.together
        return -(-config.tiles(m, n) // at_once) * config.together * (config.tile_us + k / config.split * config.k_ns / 1000)
    tiles = max(-(-config.tiles(m, n) // multiprocessors), config.together)
    return tiles * (config.tile_us + k * config.k_ns / 1000)
