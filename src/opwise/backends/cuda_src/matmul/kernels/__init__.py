"""The main path: the tiles of portable.cu, with the numbers by which a plan chooses among them, and which tiles there are for each type.

portable        any GPU from sm_80: simt (float32), mma_sync (16 bits, TF32), gemv (rows of A or columns of B that are few)
wgmma           sm_90, 16 bits: persistent, ping-pong, split_k in a cluster, swap_ab
tma32           sm_90: TF32 by wgmma (wgmma_tf32), float32 by FMA with TMA (ffma_tma)
ffma            sm_90, float32: K shared by warps, clusters or the whole grid (stream_k)
cluster         sm_90: K of simt, mma_sync and TF32 tiles shared by a cluster's blocks
"""

from __future__ import annotations

from dataclasses import replace

from opwise.backends.cuda_src.matmul.configuration import Kernel
from opwise.backends.cuda_src.matmul.cost import MEMORY
from opwise.backends.cuda_src.matmul.kernels.wgmma import TILES as WGMMA

TEXTBOOK = "matmul_textbook_float32"

#        tile        rows  columns threads step stages granule speed fixed
TENSOR = (
    Kernel("128x256_v16", 128, 256, 256, 128, 3, 16, 1.00, 128),
    Kernel("128x128_v16", 128, 128, 128, 64, 4, 16, 0.85, 48),
    Kernel("64x64_v16", 64, 64, 128, 128, 4, 16, 0.50, 32),
    Kernel("16x32_v16", 16, 32, 128, 256, 6, 16, 0.23, 60),
    Kernel("128x128_v4", 128, 128, 256, 64, 4, 4, 0.64, 300),
    Kernel("64x64_v4", 64, 64, 128, 128, 4, 4, 0.38, 230),
)
#             speed fixed alone. 64x64_v4 begins and ends slowly: 500x60x500, 64 of its tiles, takes 5.1 us, 3.8 by unaligned_tma.cuh, and
# 542x36x188, 27 of them, 5.1 and 3.6.
HALF_NUMBERS = ((0.91, 220, 1.0), (0.68, 208, 1.0), (0.43, 110, 1.0), (0.18, 170, 1.0), (0.4, 160, 1.0), (0.26, 70, 4.5))
TENSOR_HALF = tuple(  # in 16 bits, beside Hopper's own on an H200
    replace(kernel, speed=speed, fixed=fixed, alone=alone, memory=MEMORY if kernel.granule == 16 else 0.0)
    for kernel, (speed, fixed, alone) in zip(TENSOR, HALF_NUMBERS, strict=True)
)
STAGED = (  # cp.async copies 4 bytes at least: 16-bit rows of odd length or at an odd address pass through registers
    Kernel("128x128_v2", 128, 128, 256, 64, 2, 2, 0.21, 290),
    Kernel("64x64_v2", 64, 64, 128, 64, 2, 2, 0.15, 250),
)
SIMT_FLOAT32 = (
    Kernel("simt_128x128_v16", 128, 128, 128, 64, 3, 16, 1.00, 32, simt=True),
    Kernel("simt_64x64_v16", 64, 64, 128, 64, 4, 16, 0.90, 32, simt=True),
    Kernel("simt_16x32_v16", 16, 32, 128, 256, 6, 16, 0.67, 192, simt=True),
    Kernel("simt_128x128_v4", 128, 128, 256, 64, 3, 4, 0.85, 32, simt=True),
    Kernel("simt_64x64_v4", 64, 64, 128, 64, 4, 4, 0.60, 32, simt=True),
)
SIMT_HALF = (Kernel("simt_64x64_v2", 64, 64, 128, 32, 3, 2, 0.02, 32, simt=True),)

ALL_HALF = WGMMA + TENSOR_HALF + STAGED + SIMT_HALF
KERNELS: dict[str, tuple[Kernel, ...]] = {"float32": SIMT_FLOAT32, "tfloat32": TENSOR, "float16": ALL_HALF, "bfloat16": ALL_HALF}


def kernel_names(kind: str) -> tuple[str, ...]:
    """Every kernel of portable.cu and wgmma.cu for float32, tfloat32, float16 or bfloat16."""
    names = tuple(kernel.source_name(kind) for kernel in KERNELS[kind])
    return (*names, TEXTBOOK) if kind == "float32" else names
