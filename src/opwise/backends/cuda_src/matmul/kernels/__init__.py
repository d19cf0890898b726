"""Configurations of the main path: a module for each .cu file, or for some of its kernels.

portable        any GPU from sm_80: mma_sync (16 bits, TF32), simt (float32)
gemv            any GPU: at most 7 columns of B
wgmma           sm_90, 16 bits: persistent, ping-pong, split-K over a cluster, swap_ab
tma32           sm_90: TF32 by wgmma (wgmma_tf32), float32 by FMA with TMA (ffma_tma)
ffma            sm_90, float32: K split over warps, or over the whole grid (stream-K)
cluster         sm_90: split-K over a cluster, with the tiles of mma_sync and simt
"""

from __future__ import annotations

from opwise.backends.cuda_src.matmul.configurations import Config
from opwise.backends.cuda_src.matmul.kernels import cluster, ffma, gemv, portable, tma32, wgmma

CONFIGS: tuple[Config, ...] = (
    *wgmma.CONFIGS,
    *tma32.CONFIGS,
    *ffma.CONFIGS,
    *portable.CONFIGS,
    *gemv.CONFIGS,
    *cluster.CONFIGS,
)
