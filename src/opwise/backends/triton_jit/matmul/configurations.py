"""What a product may get: a kernel's tile, stages, cluster and split of K are fields of a `Config`; which of them are legal for a shape."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from opwise.backends.triton_jit.common import clusters

GROUP = 8  # tile rows that programs walk down together
NARROWEST = 32  # columns of a tile


@dataclass(frozen=True)
class Config:
    """A tile of the product (BM x BN), a step of K (BK), warps a program, pipeline stages, and what a tile was measured to take.

    tile_us: us of a tile whatever K is; k_ns: ns for each 1 of K; both of an SM that runs `ctas_per_sm` programs, so that each program
    takes `ctas_per_sm` times as long. With split_k programs a tile, K is the part of one program.
    """

    BM: int
    BN: int
    BK: int
    warps: int
    stages: int
    ctas_per_sm: int = 1
    tile_us: float = 0.0
    k_ns: float = 1.0
    persistent: bool = False  # as many programs as run at once, each of which goes on to its next tile
    pingpong: bool = False  # two consumer warpgroups have a tile each: one multiplies while the other stores
    swap_ab: bool = False  # C' = B' A': rows of C, BM of them at most, are wgmma's columns
    split_k: int = 1  # programs, a thread block cluster, that share a tile's K
    least_waves: int = 1  # of tiles, from which on it was measured
    prefetch: bool = False  # a step's elements wait in registers while the step before is multiplied (extra/cluster_reduce.py)
    load: float = 1.0  # the part of an SM's throughput that one program of a product through pointers asks for

    def __str__(self) -> str:
        return f"{self.BM}x{self.BN}x{self.BK}"

    @property
    def name(self) -> str:
        """By which a tuned table knows it: all that makes another kernel of it."""
        flags = [f.name for f in fields(self) if getattr(self, f.name) is True]
        return "/".join([f"{self}/{self.warps}/{self.stages}", *flags, *([f"split_k{self.split_k}"] if self.split_k > 1 else [])])

    @property
    def options(self) -> dict[str, Any]:
        """Compile options. Fusion is pinned, since Triton's default differs between versions: a float32 dot is a chain of FMAs."""
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}

    def shared_bytes(self, element_size: int) -> int:
        """What the pipeline's stages take."""
        return (self.BM + self.BN) * self.BK * element_size * self.stages

    def tiles(self, m: int, n: int) -> int:
        return -(-m // self.BM) * -(-n // self.BN)

    def measured_at(self, m: int, n: int, multiprocessors: int) -> bool:
        """Was it measured at such products? A tile that is half empty takes as long as a full one."""
        if self.swap_ab:
            return m <= self.BM
        if self.split_k > 1 and -(-n // self.BN) > 65535:  # the grid's y
            return False
        return (n > self.BN // 2 or self.BN <= NARROWEST) and -(-self.tiles(m, n) // multiprocessors) >= self.least_waves


# -- through tensor descriptors (TMA) ----------------------------------------------------------------------------------------------------

# Of 17 to 32 rows and a short K; from a K of 128 on, and by K at most, columns from which on it is in use.
SHORT = Config(32, 64, 128, 4, 4, 1, 2.8, 4.0, swap_ab=True)
SHORT_DEPTH, SHORT_COLUMNS = 128, {256: 512, 1024: 2048}
# tile_us and k_ns are fitted to an H200's times of 1024 to 8192 cubed, and of thin and narrow products: docs/lab.md has them.
HALF_CONFIGS = (
    Config(128, 256, 64, 8, 3, 1, 2.9, 10.2, persistent=True),
    Config(128, 128, 64, 4, 2, 3, 0.9, 7.4),  # three share an SM: one's result is written while others multiply. Short K
    Config(128, 128, 64, 8, 4, 1, 1.8, 6.15),
    Config(64, 128, 128, 4, 4, 1, 3.2, 3.2),
    Config(64, 64, 128, 4, 6, 1, 3.5, 1.95),
    Config(128, 128, 64, 8, 5, 1, 4.8, 7.1, split_k=4),
    Config(128, 128, 64, 8, 5, 1, 6.9, 5.15, split_k=6),
    Config(64, 32, 128, 4, 8, 1, 4.25, 1.75, split_k=8),
    Config(64, 64, 128, 4, 6, 1, 3.9, 1.8, split_k=4),
    Config(64, 32, 128, 4, 4, 2, 1.9, 2.02, split_k=4),
    # Few rows, from 2048 of K on: what reading b takes.
    Config(16, 64, 128, 4, 10, 1, 3.3, 3.65, swap_ab=True),
    Config(16, 128, 128, 8, 6, 1, 3.4, 7.15, swap_ab=True),
    Config(16, 64, 128, 4, 10, 1, 3.0, 3.58, split_k=2, swap_ab=True),
    Config(32, 128, 128, 8, 5, 1, 3.7, 7.3, swap_ab=True),
    Config(32, 64, 128, 4, 4, 2, 1.95, 1.93, split_k=4, swap_ab=True),
    Config(32, 64, 128, 4, 9, 1, 4.7, 1.22, split_k=8, swap_ab=True),
    SHORT,
    # Where rows of A, B and C begin on lines (`LINE`). Their numbers and those of 128x256 follow both states: docs/lab/two-clocks.md.
    Config(192, 128, 64, 4, 5, 1, 1.6, 8.35, persistent=True, pingpong=True),
    Config(128, 128, 64, 4, 6, 1, 0.85, 6.35, persistent=True, pingpong=True, least_waves=2),
)
TF32_CONFIGS = (
    Config(256, 128, 32, 4, 4, 1, 8.0, 20.1, persistent=True),
    Config(192, 128, 32, 4, 5, 1, 5.0, 16.6, persistent=True),
    Config(128, 64, 32, 4, 4, 2, 2.2, 7.6),
)
# Tiles without numbers: a product gets one only on a GPU where opwise tune has measured it to be the quickest.
TRIALS = {
    "16-bit": (Config(256, 128, 64, 8, 3), Config(128, 256, 64, 8, 4), Config(128, 64, 128, 4, 4), Config(64, 256, 64, 4, 4)),
    "tf32": (),
}
FFMA_CONFIGS = (Config(128, 128, 32, 4, 3), Config(64, 64, 32, 2, 3))
FFMA_LEAST = (1.0, 1), (1.9, 1000)  # tiles an SM, and K, from which on each was measured to be quicker than what follows
# Elements of 16 bits in 128 bytes. Where rows begin between such lines, each row of a box touches two of them, and the largest tile, which
# copies least, is quicker than ping-pong.
LINE = 64
FEWEST_ROWS = 17  # fewer make a product bound by reading b, which narrow tiles without TMA read faster, or those of swapped operands
LEAST_HALF = 2**28  # multiply-adds of a 16-bit product, the least that was measured; smaller ones go on through pointers
LEAST_DEPTH = 2048  # but where K is as long as this, and is split or the rows are few


def half_configs(hopper: bool, m: int, k: int, n: int) -> tuple[Config, ...]:
    """The 16-bit configurations of this GPU and this Triton that a product may have: none where pointers are quicker.

    split_k, swap_ab and ping-pong use wgmma, which is sm_90's own, by name; the PTX of the first two counts on how Triton names and places
    things.
    """
    own = hopper and clusters.KNOWN
    if own and FEWEST_ROWS <= m <= SHORT.BM and k >= SHORT_DEPTH and any(k <= most and n >= least for most, least in SHORT_COLUMNS.items()):
        return (SHORT,)
    on_lines = k % LINE == n % LINE == 0
    configs = tuple(c for c in HALF_CONFIGS if c != SHORT and (own or (c.split_k == 1 and not (c.pingpong or c.swap_ab))))
    configs = tuple(c for c in configs if on_lines or not c.pingpong)
    few = tuple(c for c in configs if c.swap_ab and m <= c.BM and k >= LEAST_DEPTH)
    if few or m < FEWEST_ROWS:
        return few
    if m * n * k < LEAST_HALF:
        return tuple(c for c in configs if c.split_k > 1 and not c.swap_ab and k >= LEAST_DEPTH)
    return configs


# -- through pointers --------------------------------------------------------------------------------------------------------------------

# On other GPUs than sm_90. Largest first: the first whose tiles fill the GPU and whose shared memory the GPU has. Without 16-byte accesses,
# 16-bit tiles come through registers, element by element, and must be small to stay there; 4-byte elements are copied to shared memory
# asynchronously all the same.
POINTER_CONFIGS = {
    "16-bit": (Config(128, 256, 64, 8, 3), Config(128, 128, 64, 8, 3), Config(128, 64, 64, 4, 4), Config(64, 64, 64, 4, 4)),
    "unaligned": (Config(128, 128, 32, 8, 2), Config(64, 64, 32, 4, 2)),
    "tf32": (Config(128, 128, 32, 8, 3), Config(128, 64, 32, 8, 3), Config(64, 64, 32, 4, 3)),
    "ieee": (Config(128, 128, 16, 8, 3), Config(128, 64, 16, 8, 3), Config(64, 64, 16, 4, 3)),
}
# Few rows: the product is bound by reading b, and wants many narrow tiles with long steps.
FLAT_CONFIGS = {
    "16-bit": (Config(16, 64, 128, 4, 4), Config(16, 32, 128, 4, 4)),
    "unaligned": (Config(16, 64, 64, 4, 2), Config(16, 32, 64, 4, 2)),
    "tf32": (Config(16, 64, 64, 4, 4), Config(16, 32, 64, 4, 4)),
    "ieee": (Config(16, 64, 32, 4, 3), Config(16, 32, 32, 4, 3)),
}
# On sm_90, as fitted to 3399 times of 22 products on an H200 (docs/lab/matmul-triton.md); extra/ has those of rows that begin anywhere.
TILES = {
    "16-bit": (
        Config(128, 256, 64, 8, 3, 1, 3.41, 9.47, load=0.30),
        Config(128, 64, 64, 4, 4, 1, 2.51, 5.70, load=0.30),
        Config(64, 64, 64, 4, 4, 4, 2.28, 4.66),
        Config(32, 32, 128, 4, 4, 7, 2.22, 3.06),
        Config(16, 32, 128, 4, 4, 8, 2.25, 2.52, load=0.80),
    ),
    "tf32": (
        Config(128, 64, 32, 8, 3, 2, 3.05, 26.98, load=0.88),
        Config(64, 64, 32, 4, 3, 7, 2.72, 21.16, load=0.82),
        Config(32, 32, 32, 4, 4, 8, 2.58, 8.84, load=0.45),
        Config(16, 64, 64, 4, 4, 4, 2.52, 6.71, load=0.69),
        Config(16, 32, 64, 4, 4, 8, 2.71, 5.12, load=0.58),
    ),
    "ieee": (
        Config(128, 128, 16, 8, 3, 1, 2.45, 113.07),
        Config(128, 64, 16, 8, 3, 2, 3.04, 60.30, load=0.90),
        Config(64, 64, 16, 4, 3, 6, 2.56, 36.82, load=0.79),
        Config(32, 32, 32, 4, 3, 7, 2.08, 14.96, load=0.66),
        Config(16, 64, 32, 4, 3, 5, 1.77, 16.06, load=0.64),
        Config(16, 32, 32, 4, 3, 8, 1.87, 16.79, load=0.43),
    ),
}
