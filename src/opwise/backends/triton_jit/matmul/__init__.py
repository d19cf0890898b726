"""matmul in Triton: tiles of the product, one a program, accumulated in float32.

    plain.py      the shortest way, as in a tutorial
    tma.py        sm_90 and later, 16 bits, rows on 16 bytes: tiles through tensor descriptors
    pingpong.py   sm_90, 16 bits, rows on 16 bytes, meant for many tiles: two consumer warpgroups in turn
    split_k.py    sm_90, 16 bits, rows on 16 bytes, meant for few tiles and a long K, or few rows: a cluster's blocks share K
    tf32.py       sm_90, TF32, rows on 16 bytes
    ffma.py       sm_90, float32, rows on 16 bytes
    pointers.py   everything else, on every GPU
    extra/        sm_90, through pointers: few tiles whose K a cluster shares, rows that begin anywhere (OPWISE_EXTRA=off leaves it out)

Programs go through the tiles in groups of GROUP tile rows, so that those running at once share rows of a and columns of b in L2.
A factor may be a row-major matrix's transpose, which tma, pingpong, split_k and pointers read as it lies (Config.layout).
configurations.py has what a product can have; gemm/choice.py takes one of it.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial
from itertools import cycle
from types import ModuleType

from torch import Tensor

from opwise.backends.gemm import gpu
from opwise.backends.gemm.choice import choose, choose_invariant
from opwise.backends.gemm.cost import Product
from opwise.backends.protocol import Bind, Variant
from opwise.backends.triton_jit.common.launch import machine_of
from opwise.backends.triton_jit.common.specimen import Specimen
from opwise.backends.triton_jit.matmul import descriptors, ladder, plain, pointers
from opwise.backends.triton_jit.matmul.configurations import FFMA_CONFIGS, HALF_CONFIGS, TF32_CONFIGS, Config, offered
from opwise.backends.tuned import SHIPPED, look
from opwise.ops.spec import LAYOUTS, tf32_allowed

TABLE = "triton_jit/matmul"  # of opwise tune


def build(a: Tensor, b: Tensor, out: Tensor, maps: bool = True, invariant: bool = False) -> Bind:
    """maps: may tensor descriptors be used? Without, everything goes through pointers, as the model has it. invariant: is a row of the
    product to have the same bits whatever m is?"""
    dtype, machine = descriptors.dtype_of(a), machine_of(a.device)
    product = Product.of(a, b, out, "tfloat32" if dtype == "float32" and tf32_allowed() else dtype)
    found = {name: c for name, c in offered(product, machine).items() if maps or c.kernel == "pointers"}
    asked = replace(gpu.of(a.device), sms=machine.sms), look(TABLE, a.device) if maps else SHIPPED
    taken = choose_invariant(product, lambda other: offered(other, machine), *asked) if invariant else choose(product, found, *asked)
    return build_of(found[taken.name], a, b, out, "tf32" if product.kind == "tfloat32" else "ieee")


def kernel_module(name: str) -> ModuleType:
    """Imported, Gluon with it, once a product gets one of its configurations: first calls that want neither are spared 0.1 s."""
    return importlib.import_module(f"{__name__}.{name}")


def build_of(config: Config, a: Tensor, b: Tensor, out: Tensor, precision: str) -> Bind:
    """precision: of float32 through pointers, "tf32" or "ieee"."""
    if config.kernel == "pointers":
        return pointers.build(a, b, out, config, precision)
    made: Bind = kernel_module(config.kernel).build(a, b, out, config)
    return made


VARIANTS = {
    "": Variant(build, "tiles in grouped order, through tensor descriptors where they fit", takes_transposed=True),
    "invariant": Variant(partial(build, invariant=True), "batch-invariant: K summed in one order, whatever M is", takes_transposed=True),
    "plain": Variant(plain.build, "kernel[grid](...), a 64 x 64 tile a program"),
    **{rung: Variant(each, ladder.SUMMARIES[rung]) for rung, each in ladder.BUILDS.items()},
    "pointers": Variant(partial(build, maps=False), "tiles in grouped order, through pointers on every GPU", takes_transposed=True),
}


def specimens(arch: str) -> dict[str, Specimen]:
    found: dict[str, Specimen] = {}
    for dtype in ("float32", "tfloat32", "float16", "bfloat16"):
        found |= pointers.specimens(dtype, arch) | plain.specimens(dtype)
        configs: tuple[Config, ...] = ()
        if dtype.endswith("16") and arch != "sm_80":
            configs = HALF_CONFIGS if arch == "sm_90" else tuple(c for c in HALF_CONFIGS if c.kernel == "tma")
        elif arch == "sm_90":
            configs = TF32_CONFIGS if dtype == "tfloat32" else FFMA_CONFIGS
        if dtype == "bfloat16":  # each tile in one other layout
            configs += tuple(replace(c, layout=layout) for layout, c in zip(cycle(LAYOUTS[1:]), configs, strict=False))
        found |= {f"{dtype}, {c.name}, descriptors": specimen_of(c, dtype) for c in configs}
    return found | ladder.specimens()


def specimen_of(config: Config, dtype: str) -> Specimen:
    return descriptors.specimen(kernel_module(config.kernel).product(config, dtype), dtype)
