"""Kernels that are wrong as kernels are wrong at the sizes that are timed: right but for one fault. What `check` must reject there.

Each is torch code that imitates a kernel: (workload, inputs, share) -> the output. `share` scales what is left out, in elements of what the
kernel works through: of all elements in a mean, of a row in softmax, of K in a product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from pipelines import by_blocks, in_float32, in_tf32
from support import DEVICE, ON_GPU
from torch import Tensor

from opwise.bars.table import WORKLOADS
from opwise.measure.validate import Launch, Verdict, check
from opwise.ops import OPS, Workload
from opwise.ops.spec import DTYPES
from opwise.runner.truth import kinds_of

LEFT_OUT = 16  # elements
TILE = 128  # rows and columns of a product's tile, columns of a softmax's
Computed = Callable[[Workload, tuple[Tensor, ...], int], Tensor]


def right(workload: Workload, inputs: tuple[Tensor, ...], share: int = 0) -> Tensor:
    if workload.dtype == "tfloat32":
        inputs = tuple(map(in_tf32, inputs))
    return in_float32(OPS[workload.op], inputs)


def no_op(workload: Workload, inputs: tuple[Tensor, ...], share: int) -> Tensor:
    raise AssertionError("writes nothing")


def stale_result(workload: Workload, inputs: tuple[Tensor, ...], share: int) -> Tensor:
    """The result of the inputs before these."""
    return right(workload, OPS[workload.op].make_inputs(workload, inputs[0].device, 977))


def zeros(workload: Workload, inputs: tuple[Tensor, ...], share: int) -> Tensor:
    return torch.zeros_like(right(workload, inputs))


def bfloat16_for_tf32(workload: Workload, inputs: tuple[Tensor, ...], share: int) -> Tensor:
    return in_float32(OPS[workload.op], tuple(x.bfloat16().float() for x in inputs))


def tf32_cut_off(workload: Workload, inputs: tuple[Tensor, ...], share: int) -> Tensor:
    """Factors truncated to TF32, as tensor cores take a float32 that was not rounded."""
    return in_float32(OPS[workload.op], tuple((x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32) for x in inputs))


def tf32_for_float32(workload: Workload, inputs: tuple[Tensor, ...], share: int) -> Tensor:
    return in_float32(OPS[workload.op], tuple(map(in_tf32, inputs)))


def sixteen_bit_sums(workload: Workload, inputs: tuple[Tensor, ...], share: int) -> Tensor:
    """Accumulators of 16 bits; in a product sums of 16 parts of K that meet in 16 bits."""
    low = inputs[0].dtype if inputs[0].dtype.itemsize == 2 else torch.bfloat16
    if workload.op == "matmul":
        a, b = (in_tf32(x) if workload.dtype == "tfloat32" else x.float() for x in inputs)
        step = max(a.shape[1] // 16, 1)
        total = a.new_zeros(a.shape[0], b.shape[1])
        for k in range(0, a.shape[1], step):
            total = (total + a[:, k : k + step] @ b[k : k + step]).to(low).float()
        return total.to(inputs[0].dtype)
    x = inputs[0].float()
    if workload.op == "mean":
        return (by_blocks(x.reshape(-1), low).float() / x.numel()).to(inputs[0].dtype)
    numerator = (x - x.amax(-1, keepdim=True)).exp_()
    return (numerator / by_blocks(numerator, low).float()[..., None]).to(inputs[0].dtype)


def tail_left_out(workload: Workload, inputs: tuple[Tensor, ...], share: int) -> Tensor:
    """The last elements of the input, of a row or of K."""
    return _without(workload, inputs, slice(-share, None))


def slice_left_out(workload: Workload, inputs: tuple[Tensor, ...], share: int) -> Tensor:
    """As many elements from the middle, from where tiles begin."""
    n = length(workload)
    begin = n // 2 // TILE * TILE
    return _without(workload, inputs, slice(begin, begin + share))


def length(workload: Workload) -> int:
    """Of what a sum is over."""
    return math.prod(workload.shape) if workload.op == "mean" else workload.shape[1]


def left_out(compute: Computed, workload: Workload) -> int:
    """Elements that a fault leaves out where nothing else is said: a tile, as the op's `whole_inputs` know it, or a last few."""
    return {"mean": 1024, "softmax": TILE}.get(workload.op, LEFT_OUT) if compute is slice_left_out else LEFT_OUT


def _without(workload: Workload, inputs: tuple[Tensor, ...], part: slice) -> Tensor:
    if workload.op == "matmul":
        a = inputs[0].clone()
        a[:, part] = 0.0
        return right(workload, (a, inputs[1]))
    x = inputs[0].float()
    if workload.op == "mean":
        flat = x.reshape(-1)
        return ((flat.sum() - flat[part].double().sum()) / flat.numel()).to(inputs[0].dtype)
    numerator = (x - x.amax(-1, keepdim=True)).exp_()
    return (numerator / (numerator.sum(-1) - numerator[:, part].sum(-1))[:, None]).to(inputs[0].dtype)


def tile_lacks_a_slice(workload: Workload, inputs: tuple[Tensor, ...], share: int) -> Tensor:
    """One tile of a product's output alone lacks elements of K: the last tile, the last elements."""
    a, b = inputs
    out = right(workload, inputs)
    rows, columns = a[-TILE:].clone(), b[:, -TILE:]
    rows[:, -share:] = 0.0
    m, k, n = workload.shape
    out[-TILE:, -TILE:] = right(Workload("matmul", (min(m, TILE), k, min(n, TILE)), workload.dtype), (rows, columns.contiguous()))
    return out


def cut_off_output(workload: Workload, inputs: tuple[Tensor, ...], share: int) -> Tensor:
    """The output truncated to its dtype instead of rounded to nearest."""
    exact = OPS[workload.op].reference(*(x.double() for x in inputs))
    exact = exact if inputs[0].dtype == torch.float32 else exact.float()
    out = exact.to(inputs[0].dtype)
    nearer_zero = (out.view(torch.int32 if out.dtype == torch.float32 else torch.int16) - 1).view(out.dtype)
    return torch.where(out.to(exact.dtype).abs() > exact.abs(), nearer_zero, out)


def index_that_wraps(workload: Workload, inputs: tuple[Tensor, ...], share: int) -> Tensor:
    """The first input's index wraps at the largest power of two below its number of elements, as at 2^31 where there are more."""
    flat = inputs[0].reshape(-1)
    limit = 1 << (flat.numel() - 1).bit_length() - 1
    wrapped = torch.cat([flat[:limit], flat[: flat.numel() - limit]]).reshape(inputs[0].shape)
    return right(workload, (wrapped, *inputs[1:]))


@dataclass(frozen=True)
class Fault:
    """ops: where its result differs from an honest one's by more than rounding; dtypes: all, unless named."""

    compute: Computed
    ops: tuple[str, ...]
    dtypes: tuple[str, ...] = tuple(DTYPES)

    def __str__(self) -> str:
        return self.compute.__name__

    def differs(self, workload: Workload) -> bool:
        return workload.op in self.ops and workload.dtype in self.dtypes

    def prepared(self, workload: Workload, share: int = 0) -> Callable[..., Launch]:
        """As an implementation's `prepare`."""

        def prepare(*inputs: Tensor, out: Tensor) -> Launch:
            if self.compute is no_op:
                return lambda: None

            def launch() -> None:
                out.copy_(self.compute(workload, inputs, share or left_out(self.compute, workload)))

            return launch

        return prepare


OURS = ("square", "mean", "gelu", "softmax", "matmul")
SUMS, HALVES = ("mean", "softmax", "matmul"), ("float16", "bfloat16")
FAULTS = (
    Fault(no_op, OURS),
    Fault(stale_result, OURS),
    Fault(zeros, OURS),
    Fault(index_that_wraps, OURS),
    Fault(bfloat16_for_tf32, ("matmul",), ("tfloat32",)),
    Fault(tf32_cut_off, ("matmul",), ("tfloat32",)),
    Fault(tf32_for_float32, ("matmul",), ("float32",)),
    Fault(sixteen_bit_sums, SUMS),
    Fault(tail_left_out, SUMS),
    Fault(slice_left_out, SUMS),
    Fault(tile_lacks_a_slice, ("matmul",)),
    Fault(cut_off_output, ("square", "gelu", "softmax", "matmul"), HALVES),  # a mean is one element, off by more than u |r| or not
    Fault(cut_off_output, ("square",), ("float32",)),
)
ON_A_CPU = {
    "square": ((257, 781),),
    "gelu": ((257, 781),),
    "mean": ((1024, 1024),),
    "softmax": ((583, 931), (16, 20000)),
    "matmul": ((128, 1024, 256), (16, 4096, 128)),
}
TRIED = (
    tuple(dict.fromkeys(w for op in ON_A_CPU for w in (*OPS[op].workloads["core"], *(b for b in WORKLOADS if b.op == op))))
    if ON_GPU
    else tuple(Workload(op, shape, dtype) for op, shapes in ON_A_CPU.items() for shape in shapes for dtype in OPS[op].dtypes)
)
RIGHT = Fault(right, OURS)


SEEDS = (5, 6, 7, 8)


@lru_cache(maxsize=3)  # the kinds of one workload
def known(workload: Workload, kind: str, seed: int = SEEDS[0]) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """Inputs of that kind, reference and bound."""
    spec = OPS[workload.op]
    inputs = kinds_of(spec)[kind](workload, DEVICE, seed)
    exact = [x.double() for x in inputs]
    reference = spec.reference(*exact)
    return inputs, reference, spec.error_bound(workload, reference, *exact)


def verdicts(workload: Workload, fault: Fault, share: int = 0, seed: int = SEEDS[0]) -> Iterator[Verdict]:
    """Of the inputs that a run checks, one kind after the other."""
    for kind in reversed(kinds_of(OPS[workload.op])):  # where most is seen first
        inputs, reference, bound = known(workload, kind, seed)
        yield check(fault.prepared(workload, share), inputs, reference, bound)


def caught(workload: Workload, fault: Fault, share: int = 0, seeds: Sequence[int] = SEEDS) -> bool:
    """In one run, each of which draws its seed: a mean is one element, which a fault may leave within its rounding by chance."""
    return any(not verdict.ok for seed in seeds for verdict in verdicts(workload, fault, share, seed))
