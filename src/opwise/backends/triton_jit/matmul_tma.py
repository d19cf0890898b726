"""matmul on sm_90 and later through tensor descriptors (TMA): one thread asks for a tile, out-of-range elements arrive as zeros, no mask.

Many 16-bit tiles are matmul_pingpong.py's, whose warpgroups take turns and hide a tile's store; where rows straddle lines of the L2, and on
later GPUs, resident programs'. Where tiles are few and K is long, matmul_split.py's blocks share it. Those of TF32 are matmul_roles.py's,
the smallest matmul_warpgroup.py's; those of float32 by multiply-adds matmul_fma.py's.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from opwise.backends.protocol import Bind, Launch
from opwise.backends.triton_jit.common import clusters
from opwise.backends.triton_jit.common.launch import INTERPRETING as IN_INTERPRETER
from opwise.backends.triton_jit.common.launch import built, processors
from opwise.backends.triton_jit.common.portable import device_function
from opwise.backends.triton_jit.common.specimen import POINTERS, Specimen
from opwise.backends.triton_jit.matmul_config import GROUP, Config, quickest
from opwise.backends.triton_jit.matmul_pointers import quicker_through_pointers


@device_function
def tile_of(M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """The program's tile: down a group of GROUP tile rows first, then along."""
    return tile_at(tl.program_id(0), M, N, BM, BN, GROUP)


@device_function
def tile_at(program, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    tiles_m = tl.cdiv(M, BM)
    a_group = GROUP * tl.cdiv(N, BN)
    first = program // a_group * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    return first + program % a_group % height, program % a_group // height


@triton.jit
def descriptor_kernel(a, b, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                      GROUP: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """a, b, out: tensor descriptors with blocks BM x BK, BK x BN, BM x BN of 16-bit elements."""
    tile_m, tile_n = tile_of(M, N, BM, BN, GROUP)
    row, column = tile_m * BM, tile_n * BN
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        total = tl.dot(a.load([row, start]), b.load([start, column]), total)
    out.store([row, column], total.to(out.dtype))


@triton.jit
def resident_kernel(a, b, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                    GROUP: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """The same for as many programs as run at once, each of which goes on to the next tile that no other takes. Flattened to one loop, the
    next tile's first steps are fetched while the last one's result is stored, which is most of the time where K is short."""
    for program in tl.range(tl.program_id(0), tl.cdiv(M, BM) * tl.cdiv(N, BN), tl.num_programs(0), flatten=True):
        tile_m, tile_n = tile_at(program, M, N, BM, BN, GROUP)
        row, column = tile_m * BM, tile_n * BN
        total = tl.zeros((BM, BN), tl.float32)
        for start in tl.range(0, K, BK):
            total = tl.dot(a.load([row, start]), b.load([start, column]), total)
        out.store([row, column], total.to(out.dtype))


# Of 17 to 32 rows and a short K; from a K of 128 on, and by K at most, columns from which on it is in use.
SHORT = Config(32, 64, 128, 4, 4, 1, 2.8, 4.0, few=True)
SHORT_DEPTH, SHORT_COLUMNS = 128, {256: 512, 1024: 2048}
# What a tile takes is fitted to an H200's times of 1024 to 8192 cubed, and of thin and narrow products: docs/lab.md has them.
HALF_CONFIGS = (
    Config(128, 256, 64, 8, 3, 1, 2.9, 10.2, resident=True),
    Config(128, 128, 64, 4, 3, 2, 1.4, 6.7),
    Config(128, 128, 64, 4, 2, 3, 0.9, 7.4),  # three share a multiprocessor: one's result is written while others multiply. Short K
    Config(128, 128, 64, 8, 4, 1, 1.8, 6.15),
    Config(128, 64, 64, 4, 4, 1, 3.4, 4.0),
    Config(64, 128, 128, 4, 4, 1, 3.2, 3.2),
    Config(64, 64, 128, 4, 6, 1, 3.5, 1.95),
    Config(128, 128, 64, 8, 5, 1, 4.8, 7.1, split=4),
    Config(128, 128, 64, 8, 5, 1, 6.9, 5.15, split=6),
    Config(128, 128, 64, 8, 5, 1, 7.3, 3.0, split=8, most=8),
    Config(64, 32, 128, 4, 8, 1, 4.25, 1.75, split=8),
    Config(64, 64, 128, 4, 6, 1, 3.9, 1.8, split=4),
    Config(64, 32, 128, 4, 4, 2, 1.9, 2.02, split=4),
    Config(64, 32, 128, 4, 8, 1, 4.4, 3.74),
    # Few rows, from 2048 of K on: what reading b takes.
    Config(16, 64, 128, 4, 10, 1, 3.3, 3.65, few=True),
    Config(16, 128, 128, 8, 6, 1, 3.4, 7.15, few=True),
    Config(16, 64, 128, 4, 10, 1, 3.0, 3.58, split=2, few=True),
    Config(32, 64, 128, 4, 9, 1, 3.3, 3.67, few=True),
    Config(32, 128, 128, 8, 5, 1, 3.7, 7.3, few=True),
    Config(32, 64, 128, 4, 9, 1, 3.2, 3.64, split=2, few=True),
    Config(32, 64, 128, 4, 4, 2, 1.95, 1.93, split=4, few=True),
    Config(32, 64, 128, 4, 9, 1, 4.7, 1.22, split=8, few=True),
    SHORT,
    # Where rows of A, B and C begin on lines (`LINE`). Their numbers and those of 128x256 follow both states: docs/lab/two-clocks.md.
    Config(192, 128, 64, 4, 5, 1, 1.6, 8.35, resident=True, pingpong=True, rounds=2),
    Config(128, 128, 64, 4, 6, 1, 0.85, 6.35, resident=True, pingpong=True, rounds=2),
)
TF32_CONFIGS = (
    Config(256, 128, 32, 4, 4, 1, 8.0, 20.1, resident=True),
    Config(192, 128, 32, 4, 5, 1, 5.0, 16.6, resident=True),
    Config(128, 64, 32, 4, 4, 2, 2.2, 7.6),
)
FMA_CONFIGS = (Config(128, 128, 32, 4, 3), Config(64, 64, 32, 2, 3))
FMA_LEAST = (1.0, 1), (1.9, 1000)  # tiles a multiprocessor, and K, from which on each was measured to be quicker than what follows
# Elements of 16 bits in 128 bytes. Where rows begin between such lines, each row of a box touches two of them, and the largest tile, which
# copies least, is quicker than those by turns.
LINE = 64
FEWEST_ROWS = 17  # fewer make a product bound by reading b, which narrow tiles without TMA read faster, or those for few rows
LEAST_HALF = 2**28  # multiply-adds of a 16-bit product, the least that was measured; smaller ones go on through pointers
LEAST_DEPTH = 2048  # but where K is as long as this, and is shared or the rows are few


def fit(a: Tensor, b: Tensor, out: Tensor) -> bool:
    """TMA takes addresses and row lengths in multiples of 16 bytes and 32-bit coordinates."""
    if IN_INTERPRETER or torch.cuda.get_device_capability(a.device) < (9, 0):
        return False
    rows_fit = all(x.shape[1] * x.element_size() % 16 == 0 and x.data_ptr() % 16 == 0 for x in (a, b, out))
    return rows_fit and max(*a.shape, *b.shape) < 2**31 - 256


def half_configs(hopper: bool, m: int, k: int, n: int) -> tuple[Config, ...]:
    """The 16-bit tiles of this GPU and this Triton that a product may have: none where pointers are quicker.

    wgmma is sm_90's own, and asked for by name where blocks share a tile's K and where warpgroups take turns; PTX of the first counts on
    how Triton names and places things.
    """
    own = hopper and clusters.KNOWN
    if own and FEWEST_ROWS <= m <= SHORT.BM and k >= SHORT_DEPTH and any(k <= most and n >= least for most, least in SHORT_COLUMNS.items()):
        return (SHORT,)
    on_lines = k % LINE == n % LINE == 0
    configs = tuple(c for c in HALF_CONFIGS if c != SHORT and (own or (c.split == 1 and not (c.pingpong or c.few))))
    configs = tuple(c for c in configs if on_lines or not c.pingpong)
    few = tuple(c for c in configs if c.few and m <= c.BM and k >= LEAST_DEPTH)
    if few or m < FEWEST_ROWS:
        return few
    if m * n * k < LEAST_HALF:
        return tuple(c for c in configs if c.split > 1 and not c.few and k >= LEAST_DEPTH)
    return configs


def build(a: Tensor, b: Tensor, out: Tensor, precision: str) -> Bind | None:
    """precision: of float32 factors, "tf32" or "ieee". None where other kernels do better."""
    m, k, n = *a.shape, b.shape[1]
    hopper = torch.cuda.get_device_capability(a.device)[0] == 9
    if a.element_size() == 2:
        if not (configs := half_configs(hopper, m, k, n)):
            return None
        config = quickest(configs, m, n, k, a)
        return build_in_gluon(_half(config), a, b, out, config) if _half(config) else bound(a, b, out, config)
    if m < FEWEST_ROWS:
        return None
    # wgmma is sm_90's own, and float32's tile was measured there: nothing here has been fitted to later GPUs.
    if not hopper:
        return None
    if precision == "tf32":
        config = quickest(TF32_CONFIGS, m, n, k, a)
        if quicker_through_pointers(config, m, n, k, a):
            return None
        return build_in_gluon(_tf32(config), a, b, out, config)
    # A product that does not fill the GPU with either tile goes through pointers.
    for config, (tiles, least) in zip(FMA_CONFIGS, FMA_LEAST, strict=True):
        if config.tiles(m, n) >= tiles * processors(a.device) and k >= least:
            return build_in_gluon("fma", a, b, out, config)
    return None


def bound(a: Tensor, b: Tensor, out: Tensor, config: Config) -> Bind:
    m, k, n = *a.shape, b.shape[1]
    blocks = ([config.BM, config.BK], [config.BK, config.BN], [config.BM, config.BN])
    # Programs that follow one another share what both read at the same time: best rows of a, where a is the larger.
    group = 1 if m >= 2 * n and config.BM == config.BN == 64 else GROUP

    def described(a: Tensor, b: Tensor, out: Tensor) -> tuple[TensorDescriptor, ...]:
        return tuple(TensorDescriptor(x, list(x.shape), [x.shape[1], 1], block) for x, block in zip((a, b, out), blocks, strict=True))

    programs = config.tiles(m, n)
    if config.resident:
        programs = min(programs, config.together * processors(a.device))
    fixed = {"BM": config.BM, "BN": config.BN, "BK": config.BK, "GROUP": group, **config.options}
    ready = built(_kernel(config), (programs, 1, 1), *described(a, b, out), m, n, k, **fixed)

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return ready(*described(a, b, out), m, n, k)

    return bind


def _kernel(config: Config) -> Any:
    return resident_kernel if config.resident else descriptor_kernel


def _half(config: Config) -> str:
    """Which of the modules in Gluon has a 16-bit tile; "" of those of this file."""
    return "split" if config.split > 1 or config.few else "pingpong" if config.pingpong else ""


def _tf32(config: Config) -> str:
    return "roles" if config.resident else "warpgroup"


def _in_gluon(name: str) -> ModuleType:
    """Imported, Gluon with it, once a product gets one of its tiles: first calls that want neither are spared 0.1 s."""
    return importlib.import_module(f"opwise.backends.triton_jit.matmul_{name}")


def build_in_gluon(name: str, a: Tensor, b: Tensor, out: Tensor, config: Config) -> Bind:
    bind: Bind = _in_gluon(name).build(a, b, out, config)
    return bind


def tf32_specimen(config: Config) -> Specimen:
    made: Specimen = _in_gluon(_tf32(config)).specimen(config)
    return made


def specimens(dtype: str, hopper: bool = True) -> dict[str, Specimen]:
    if dtype == "tfloat32":
        return {f"{dtype}, {c.name}, {'roles' if c.resident else 'pipelined'}": tf32_specimen(c) for c in TF32_CONFIGS}
    if dtype == "float32":
        return {f"{dtype}, {c}/{c.warps}/{c.stages}, multiply-adds": _in_gluon("fma").specimen(c) for c in FMA_CONFIGS}
    found = {}
    for c in HALF_CONFIGS if hopper else half_configs(False, 4096, 4096, 4096):
        kind = "few" if c.few else _half(c) or ("resident" if c.resident else "descriptors")
        found[f"{dtype}, {c.name}, {kind}"] = (_in_gluon(_half(c)).specimen if _half(c) else _specimen)(c, dtype)
    return found


def _specimen(config: Config, dtype: str) -> Specimen:
    element = POINTERS[dtype].removeprefix("*")
    blocks = {"a": (config.BM, config.BK), "b": (config.BK, config.BN), "out": (config.BM, config.BN)}
    types = {name: f"tensordesc<{element}[{rows}, {columns}]>" for name, (rows, columns) in blocks.items()}
    constants = {"BM": config.BM, "BN": config.BN, "BK": config.BK, "GROUP": GROUP}
    return Specimen(_kernel(config), {**types, "M": "i32", "N": "i32", "K": "i32"}, constants, config.options)
