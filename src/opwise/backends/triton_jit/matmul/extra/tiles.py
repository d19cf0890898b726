"""Configurations of cluster_reduce.py on sm_90, as fitted to 3399 times of 22 products on an H200 (docs/lab/matmul-triton.md)."""

from __future__ import annotations

from opwise.backends.triton_jit.matmul.configurations import Config

SPLITS = (1, 2, 4, 8, 16)  # programs of a tile, by which TILES of the main path may be split, too
EXCHANGE_US = {2: 0.99, 4: 1.06, 8: 1.52, 16: 2.21}  # us in which programs of a tile exchange their partial sums, and
SUM_NS = 0.059  # ns for each of the tile's sums
FREE = 48 * 1024  # bytes of shared memory that a kernel may have without having been asked
PAD = 4  # sums between rows in shared memory, so that a warp's rows begin in different banks, on 16 bytes
# "unaligned" and "odd tf32": rows of 16 bits or of TF32 that begin anywhere. They come element by element, those of 16 bits through
# registers, where stages of shared memory are of no use. float32's FFMA, "ieee", loses a tenth by it, whichever tile.
TILES = {
    "unaligned": (
        Config(128, 128, 32, 8, 1, 2, 3.10, 24.03, prefetch=True, load=0.95),
        Config(128, 64, 64, 8, 1, 2, 4.41, 13.09, prefetch=True),
        Config(64, 64, 64, 4, 1, 2, 2.57, 14.40, prefetch=True, load=0.66),
        Config(32, 32, 64, 4, 1, 6, 1.73, 10.98, prefetch=True, load=0.56),
        Config(16, 32, 64, 4, 1, 8, 2.10, 9.83, prefetch=True, load=0.41),
    ),
    "tf32": (
        Config(128, 64, 32, 8, 1, 2, 2.95, 28.16, prefetch=True, load=0.80),
        Config(32, 32, 32, 4, 1, 8, 2.10, 17.58, prefetch=True, load=0.29),
    ),
    "odd tf32": (
        Config(128, 128, 32, 8, 1, 1, 5.25, 49.62, prefetch=True, load=0.30),
        Config(128, 64, 32, 8, 1, 1, 2.82, 26.71, prefetch=True, load=0.30),
        Config(64, 64, 32, 8, 1, 3, 2.50, 20.92, prefetch=True, load=0.86),
        Config(32, 32, 32, 4, 1, 4, 1.19, 20.10, prefetch=True, load=0.31),
        Config(16, 32, 64, 4, 4, 7, 3.17, 4.99),
    ),
}


def exchanged_bytes(config: Config) -> int:
    """Of shared memory that a program's partial sums take, for the others to read."""
    return config.BM * (config.BN + PAD) * 4 if config.split_k > 1 else 0
