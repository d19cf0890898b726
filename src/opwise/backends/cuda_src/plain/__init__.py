"""The kernels of the variant `plain`, as in a tutorial, and their launches.

torch_inline's and cupy_raw's `plain.py` pass the same texts to load_inline and RawKernel. A kernel is a template over types that convert
from and to float; `typed` makes an extern "C" kernel of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from opwise.backends.cuda_src.plan import Plan
from opwise.backends.cuda_src.recipes import Recipe
from opwise.backends.protocol import Bind, Build, Launch, UnsupportedWorkload

FOLDER = Path(__file__).parent
SUMMARIES = {
    "square": "one element a thread",
    "gelu": "one element a thread",
    "mean": "sums of blocks in shared memory, in two launches",
    "softmax": "a block a row, which it reads three times",
    "matmul": "16x16 tiles in shared memory, one element a thread",
}
THREADS, SIDE = 256, 16  # threads of a block; of a matmul's block in x and in y
MOST_SUMS = 4096  # blocks of a mean's first launch
MOST_BLOCKS_Y = 65535
Size3 = tuple[int, int, int]


def text(op: str) -> str:
    return (FOLDER / f"{op}.cu").read_text(encoding="utf-8")


def typed(op: str, name: str, types: tuple[str, ...]) -> str:
    """The extern "C" kernel `name`: the op's template with these C types as its parameters, in order."""
    head, _, rest = text(op).partition("template <")
    parameters, _, body = rest.partition("__global__ void ")
    names = [word.split()[-1] for word in parameters.split(">")[0].split(",")]
    given = "".join(f"#define {parameter} {type_}\n" for parameter, type_ in zip(names, types, strict=True))
    ends = "".join(f"#undef {parameter}\n" for parameter in names)
    return f'{head}{given}extern "C" __global__ void {name}{body.removeprefix(op)}{ends}'


@dataclass(frozen=True)
class Step:
    """One launch. dtypes: the kernel's template arguments; tensors, sizes: its parameters."""

    dtypes: tuple[torch.dtype, ...]
    grid: Size3
    block: Size3
    tensors: tuple[Tensor, ...]
    sizes: tuple[int, ...]


def steps(op: str, *tensors: Tensor) -> tuple[Step, ...]:
    """The launches for these inputs and output. Raises UnsupportedWorkload if C has too many rows for gridDim.y."""
    x, out = tensors[0], tensors[-1]
    n, own, line = x.numel(), (x.dtype,), (THREADS, 1, 1)
    if op == "matmul":
        (m, k), columns = x.shape, out.shape[1]
        if m > SIDE * MOST_BLOCKS_Y:
            raise UnsupportedWorkload(f"matmul:plain takes {SIDE * MOST_BLOCKS_Y} rows of A at most, given {m}: use the unnamed variant")
        return (Step(own, (-(-columns // SIDE), -(-m // SIDE), 1), (SIDE, SIDE, 1), tensors, (m, k, columns)),)
    if op == "softmax":
        return (Step(own, (x.shape[0], 1, 1), line, tensors, (x.shape[1],)),)
    blocks = -(-n // THREADS)
    if op != "mean":
        return (Step(own, (blocks, 1, 1), line, tensors, (n,)),)
    sums = torch.empty(min(blocks, MOST_SUMS), dtype=torch.float32, device=x.device)
    add = Step((x.dtype, sums.dtype), (sums.numel(), 1, 1), line, (x, sums), (n, 1))
    return add, Step((sums.dtype, x.dtype), (1, 1, 1), line, (sums, out), (sums.numel(), n))


# -- without a GPU -----------------------------------------------------------------------------------------------------------

# A 16-bit type for the stand-in, with the conversions of its half.h.
TYPE_OF_16_BITS = """struct {name} {{
    unsigned short bits;
    {name}() = default;
    explicit {name}(float x) : bits(::cpu::{format}_of_float(x)) {{}}
    operator float() const {{ return ::cpu::float_of_{format}(bits); }}
}};
"""
CPU_TYPES = {torch.float32: "float", torch.float16: "Half", torch.bfloat16: "Bfloat"}


def unit(op: str) -> str:
    """The op's kernels for the stand-in, one for each combination of types that `steps` uses."""
    sixteen = [TYPE_OF_16_BITS.format(name=name, format=name.lower()) for name in ("Half", "Bfloat")]
    others = [(dtype, torch.float32) for dtype in CPU_TYPES], [(torch.float32, dtype) for dtype in CPU_TYPES]
    combinations = dict.fromkeys([*others[0], *others[1]] if op == "mean" else [(dtype,) for dtype in CPU_TYPES])
    kernels = [typed(op, _name(op, dtypes), tuple(CPU_TYPES[d] for d in dtypes)) for dtypes in combinations]
    return "".join([*sixteen, *kernels])


def units() -> Mapping[str, str]:
    """As sources.UNITS."""
    return {f"{op}_plain": unit(op) for op in SUMMARIES}


def _name(op: str, dtypes: tuple[torch.dtype, ...]) -> str:
    return "_".join(["plain", op, *(str(dtype).removeprefix("torch.") for dtype in dtypes)])


def on_cpu(op: str, built: Callable[[Recipe], Build]) -> Build:
    """A build of the stand-in's kernels, by the backend's launcher `built`."""

    def bound(step: Step) -> Launch:
        plan = Plan(_name(op, step.dtypes), step.grid, step.block)
        return built(Recipe("", lambda *_: plan, lambda *_: step.sizes))(*step.tensors)(*step.tensors)

    def build(*tensors: Tensor) -> Bind:
        steps(op, *tensors)  # raises UnsupportedWorkload

        def bind(*tensors: Tensor) -> Launch:
            launches = [bound(step) for step in steps(op, *tensors)]

            def launch() -> None:
                for one in launches:
                    one()

            return launch

        return bind

    return build
