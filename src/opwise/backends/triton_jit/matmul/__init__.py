"""matmul in Triton: tiles of the product, one a program, accumulated in float32.

    plain.py      the shortest way, which a tutorial has
    tma.py        sm_90 and later, rows on 16 bytes: tiles through tensor descriptors; 16 bits from 2^28 multiply-adds on
    pingpong.py   sm_90, 16 bits, rows of whole lines, two tiles an SM and more: two consumer warpgroups in turn
    split_k.py    sm_90, 16 bits, few tiles and a long K, or few rows: a cluster's blocks share K
    tf32.py       sm_90, TF32
    ffma.py       sm_90, float32, products that fill the GPU
    pointers.py   everything else, on every GPU
    extra/        sm_90, through pointers: few tiles whose K a cluster shares, rows that begin anywhere (OPWISE_EXTRA=off leaves it out)

Programs go through the tiles in groups of GROUP tile rows, so that those running at once share rows of a and columns of b in L2.
configurations.py says what a product may get, cost.py which of it is the quickest.
"""

from __future__ import annotations

import importlib
from functools import partial
from types import ModuleType

import torch
from torch import Tensor

from opwise.backends.protocol import Bind, Variant
from opwise.backends.triton_jit.common.launch import processors
from opwise.backends.triton_jit.common.specimen import Specimen
from opwise.backends.triton_jit.matmul import cost, descriptors, ladder, plain, pointers, tma
from opwise.backends.triton_jit.matmul.configurations import (
    FEWEST_ROWS,
    FFMA_CONFIGS,
    FFMA_LEAST,
    HALF_CONFIGS,
    TF32_CONFIGS,
    Config,
    half_configs,
)
from opwise.ops.spec import tf32_allowed


def build(a: Tensor, b: Tensor, out: Tensor, maps: bool = True) -> Bind:
    """maps: may tensor descriptors be used? Without, everything goes through pointers."""
    precision = "tf32" if a.dtype == torch.float32 and tf32_allowed() else "ieee"
    if maps and tma.fit(a, b, out) and (config := through_maps(a, b, precision)):
        return build_of(config, a, b, out, precision)
    aligned = all(x.shape[1] % 16 == 0 and x.data_ptr() % 16 == 0 for x in (a, b, out))  # what Triton can prove of a row's alignment
    kind = precision if a.dtype == torch.float32 else "16-bit" if aligned else "unaligned"
    kind = "odd tf32" if kind == "tf32" and not aligned else kind
    return pointers.build(a, b, out, cost.through_pointers(kind, a.shape[0], b.shape[1], a.shape[1], a), precision)


def through_maps(a: Tensor, b: Tensor, precision: str) -> Config | None:
    """The configuration of a product through tensor descriptors; None where pointers do better. precision: of float32, "tf32" or "ieee"."""
    m, k, n = *a.shape, b.shape[1]
    hopper = torch.cuda.get_device_capability(a.device)[0] == 9
    if a.element_size() == 2:
        configs = half_configs(hopper, m, k, n)
        return cost.quickest(configs, m, n, k, a) if configs else None
    if m < FEWEST_ROWS or not hopper:  # wgmma is sm_90's own, and float32's tile was measured there
        return None
    if precision == "tf32":
        config = cost.quickest(TF32_CONFIGS, m, n, k, a)
        return None if cost.quicker_through_pointers(config, m, n, k, a) else config
    filled = zip(FFMA_CONFIGS, FFMA_LEAST, strict=True)
    return next((c for c, (tiles, least) in filled if c.tiles(m, n) >= tiles * processors(a.device) and k >= least), None)


def kernel_of(config: Config, precision: str) -> str:
    """The module that has a configuration through tensor descriptors. precision: "tf32", "ieee" of float32, "" of 16 bits."""
    if precision:
        return "tf32" if precision == "tf32" else "ffma"
    return "split_k" if config.split_k > 1 or config.swap_ab else "pingpong" if config.pingpong else "tma"


def kernel_module(name: str) -> ModuleType:
    """Imported, Gluon with it, once a product gets one of its configurations: first calls that want neither are spared 0.1 s."""
    return importlib.import_module(f"{__name__}.{name}")


def build_of(config: Config, a: Tensor, b: Tensor, out: Tensor, precision: str) -> Bind:
    made: Bind = kernel_module(kernel_of(config, precision * (a.element_size() == 4))).build(a, b, out, config)
    return made


VARIANTS = {
    "": Variant(build, "tiles in grouped order, through tensor descriptors where they fit"),
    "plain": Variant(plain.build, "kernel[grid](...), a 64 x 64 tile a program"),
    **{rung: Variant(each, ladder.SUMMARIES[rung]) for rung, each in ladder.BUILDS.items()},
    "pointers": Variant(partial(build, maps=False), "tiles in grouped order, through pointers on every GPU"),
}


def specimens(arch: str) -> dict[str, Specimen]:
    found: dict[str, Specimen] = {}
    for dtype in ("float32", "tfloat32", "float16", "bfloat16"):
        found |= pointers.specimens(dtype, arch) | plain.specimens(dtype)
        if dtype.endswith("16") and arch != "sm_80":
            configs = HALF_CONFIGS if arch == "sm_90" else half_configs(False, 4096, 4096, 4096)
            found |= {f"{dtype}, {c.name}, descriptors": specimen_of(c, dtype, "") for c in configs}
        elif arch == "sm_90":
            configs, precision = (TF32_CONFIGS, "tf32") if dtype == "tfloat32" else (FFMA_CONFIGS, "ieee")
            found |= {f"{dtype}, {c.name}, descriptors": specimen_of(c, dtype, precision) for c in configs}
    return found | ladder.specimens()


def specimen_of(config: Config, dtype: str, precision: str) -> Specimen:
    return descriptors.specimen(kernel_module(kernel_of(config, precision)).product(config, dtype), dtype)
