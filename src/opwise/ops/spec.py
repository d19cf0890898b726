"""The specification of an op: inputs, float64 reference, error bound and cost.

It is independent of every implementation. Outputs are compared with the float64 reference alone. A kernel that accumulates carefully in
float32 meets the error bound; a careless kernel does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "tfloat32": torch.float32,  # float32 data whose products may be rounded to TF32
}
# Layouts of a matmul's two factors: N is row-major, T the transpose of a row-major matrix, "" is NN. nn.Linear computes x @ w.t(), NT.
LAYOUTS = ("", "NT", "TN", "TT")
STORAGE_DTYPES = frozenset(DTYPES.values())

# Unit roundoff u: the largest relative error of one rounding to nearest, 2^-p for a significand of p bits.
UNIT_ROUNDOFF: Mapping[torch.dtype, float] = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
U32 = UNIT_ROUNDOFF[torch.float32]
# The smallest subnormal: the absolute error that underflow adds to the relative one.
LEAST_SUBNORMAL: Mapping[torch.dtype, float] = {torch.float32: 2.0**-149, torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133}

# Root mean square of a rounding's relative error, in units of u: uniform within +-u at the low end of a binade, smaller above it.
RMS = 3.0**-0.5
FALSE_ALARM = 1e-9  # probability per launch: 1000 seeds of 1000 workloads fail by chance at most once in 1000 such campaigns

REDUCTION_SWITCHES = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


@dataclass(frozen=True, order=True)
class Workload:
    """An op at one shape and dtype, written ``softmax/4096x4096/float16``. The shape of a matmul is (M, K, N).

    layout: of a matmul's factors, one of LAYOUTS, as in ``matmul/16x4096x4096/float16/NT``. Raises ValueError for an unknown value.
    """

    op: str
    shape: tuple[int, ...]
    dtype: str
    layout: str = ""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"unknown dtype {self.dtype!r}: known are {', '.join(DTYPES)}")
        if self.layout not in LAYOUTS:
            raise ValueError(f"unknown layout {self.layout!r}: known are {', '.join(filter(None, LAYOUTS))}, and none for row-major")
        if any(n < 0 for n in self.shape):
            raise ValueError(f"negative size in shape {self.shape}")

    def __str__(self) -> str:
        return f"{self.op}/{'x'.join(map(str, self.shape)) or 'scalar'}/{self.dtype}" + (f"/{self.layout}" if self.layout else "")

    @classmethod
    def parse(cls, text: str) -> Workload:
        """The inverse of ``str()``. Raises ValueError with the expected form."""
        try:
            op, shape, dtype, *layout = text.split("/")
            sizes = () if shape == "scalar" else tuple(int(n) for n in shape.split("x"))
        except ValueError as error:
            raise ValueError(f"{text!r} is no workload: write op/shape/dtype, as in softmax/4096x4096/float16") from error
        if len(layout) > 1:
            raise ValueError(f"{text!r} is no workload: write op/shape/dtype, as in softmax/4096x4096/float16")
        return cls(op, sizes, dtype, *layout)

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @contextmanager
    def precision(self) -> Iterator[None]:
        """Sets torch's precision switches within the block and restores them after it: TF32 products for tfloat32 (every matmul here
        reads that switch), and no 16-bit reduction. By default torch lets cuBLAS add the partial sums of a split K in 16 bits: for
        583x931x781 in bfloat16 on an H200 the error was 25 times the bound."""
        switches, before = torch.backends.cuda.matmul, torch.get_float32_matmul_precision()
        reduced = {name: getattr(switches, name) for name in REDUCTION_SWITCHES}
        torch.set_float32_matmul_precision("high" if self.dtype == "tfloat32" else "highest")
        for name in REDUCTION_SWITCHES:
            setattr(switches, name, False)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
            for name, value in reduced.items():
                setattr(switches, name, value)


def deviations(elements: int) -> float:
    """z such that normally distributed errors of so many elements all lie within z standard deviations, but for one launch in 10^9.

    P(|N(0, 1)| > z) <= exp(-z^2 / 2), summed over the elements: z = sqrt(2 ln(elements / FALSE_ALARM)). 6.4 for 1 element, 8.8 for 10^8.
    """
    return math.sqrt(2.0 * math.log(max(elements, 1) / FALSE_ALARM))


def tf32_allowed() -> bool:
    """Whether a float32 matmul may round its factors to TF32. torch's float32 matmul precision decides, as for torch.matmul."""
    return torch.get_float32_matmul_precision() != "highest"


@dataclass(frozen=True)
class Cost:
    """The least work of any implementation: each input is read once, each output written once, and no flop is redundant.

    unit: the peak rate that applies to the flops: `fma` (float32 arithmetic), `tensor_float16`, `tensor_bfloat16` or `tensor_tfloat32`.
    """

    read_bytes: int
    write_bytes: int
    flops: int
    unit: str = "fma"

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.write_bytes


@dataclass(frozen=True)
class OpSpec:
    """A mathematical operation. Every callable is pure; results are on the device of the inputs.

    make_inputs(workload, device, seed) -> inputs ~ N(0, 1): timed, and checked first.
    hard_inputs(workload, device, seed) -> finite inputs on which a careless kernel exceeds the error bound: checked, never timed.
    whole_inputs(workload, device, seed) -> inputs on which a kernel that skips a tile, a row end, a tail or a slice of K exceeds the bound:
        checked, never timed. None if any input does that.
    output_shape(*input shapes) -> the output's shape. Raises ValueError if the inputs do not fit the op.
    workload_shape(*input shapes) -> the Workload's shape. sizes(workload's shape) -> the sizes that set its time; default (elements,).
    reference(*float64 inputs) -> the float64 result.
    error_bound(workload, reference, *float64 inputs) -> elementwise bound on |out - reference|, float64. A kernel with float32 accumulation
        exceeds it in at most one launch in 10^9 (`deviations`), if the terms of its sums are in no order of size or sign.
    layouts: the members of LAYOUTS that the op accepts. layout(*inputs) -> the layout of the inputs; "" also if it is none of LAYOUTS.
    workloads: named sets (smoke, seed, core, sweep, grid, layers, random).
    """

    name: str
    summary: str
    inputs: tuple[str, ...]
    dtypes: tuple[str, ...]
    make_inputs: Callable[[Workload, torch.device, int], tuple[Tensor, ...]]
    hard_inputs: Callable[[Workload, torch.device, int], tuple[Tensor, ...]]
    output_shape: Callable[..., tuple[int, ...]]
    workload_shape: Callable[..., tuple[int, ...]]
    reference: Callable[..., Tensor]
    error_bound: Callable[..., Tensor]
    cost: Callable[[Workload], Cost]
    workloads: Mapping[str, tuple[Workload, ...]] = field(repr=False)
    whole_inputs: Callable[[Workload, torch.device, int], tuple[Tensor, ...]] | None = None
    value_of_nothing: float | None = None  # the result of a sum of no terms: nan for the mean, 0 for a matmul with K = 0
    reads_precision: bool = False  # whether torch's float32 matmul precision changes the workload
    sizes: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda shape: (math.prod(shape),)
    layouts: tuple[str, ...] = ("",)
    layout: Callable[..., str] = lambda *inputs: ""

    def empty_output(self, *inputs: Tensor) -> Tensor:
        """An uninitialised contiguous output tensor, of the first input's dtype and device."""
        first = inputs[0]
        return torch.empty(self.output_shape(*(x.shape for x in inputs)), dtype=first.dtype, device=first.device)

    def check_inputs(self, *inputs: Tensor) -> None:
        """Raises TypeError or ValueError unless the inputs fit the op. The message says what was given, what is accepted and what to do."""
        if len(inputs) != len(self.inputs):
            raise TypeError(f"{self.name} takes {len(self.inputs)} tensor(s) ({', '.join(self.inputs)}): {len(inputs)} given")
        for name, x in zip(self.inputs, inputs, strict=True):
            if not isinstance(x, Tensor):
                raise TypeError(f"{self.name}: {name} must be a torch.Tensor, given {type(x).__name__}: wrap it with torch.as_tensor")
            if x.layout != torch.strided:
                raise TypeError(f"{self.name}: {name} has layout {x.layout}, dense tensors are taken: call {name}.to_dense()")
            if x.dtype not in STORAGE_DTYPES:
                raise TypeError(f"{self.name}: {name} is {x.dtype}, taken are float32, float16 and bfloat16: call {name}.to(...)")
        first = inputs[0]
        for name, x in zip(self.inputs[1:], inputs[1:], strict=True):
            if x.dtype != first.dtype:
                raise TypeError(f"{self.name}: {self.inputs[0]} is {first.dtype} but {name} is {x.dtype}: give both one dtype")
            if x.device != first.device:
                raise ValueError(f"{self.name}: {self.inputs[0]} is on {first.device} but {name} on {x.device}: move one with .to()")
        if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
            raise ValueError(f"{self.name}: an input requires grad, and these kernels have no backward: "
                             "call x.detach(), or run under torch.no_grad()")  # fmt: skip
        self.output_shape(*(x.shape for x in inputs))

    def check_output(self, *inputs: Tensor, out: Tensor) -> None:
        """Raises as check_inputs does, unless `out` fits as the output for these inputs."""
        first, shape = inputs[0], self.output_shape(*(x.shape for x in inputs))
        if not isinstance(out, Tensor):
            raise TypeError(f"{self.name}: out must be a torch.Tensor, given {type(out).__name__}")
        if out.dtype != first.dtype:
            raise TypeError(f"{self.name}: out is {out.dtype}, the inputs' {first.dtype} is taken: make it with empty_output()")
        if tuple(out.shape) != tuple(shape):
            raise ValueError(f"{self.name}: out has shape {tuple(out.shape)}, taken is {tuple(shape)}: make it with empty_output()")
        if out.device != first.device:
            raise ValueError(f"{self.name}: out is on {out.device}, the inputs are on {first.device}: move one with .to()")
        if out.requires_grad:
            raise ValueError(f"{self.name}: out requires grad, a plain buffer is taken: call out.detach()")
        if any(_overlap(x, out) for x in inputs):
            raise ValueError(f"{self.name}: out overlaps an input in memory: give it storage of its own")

    def workload_of(self, *inputs: Tensor) -> Workload:
        """The workload of these inputs, under torch's current float32 matmul precision."""
        name = str(inputs[0].dtype).removeprefix("torch.")
        if self.reads_precision and name == "float32" and tf32_allowed():
            name = "tfloat32"
        return Workload(self.name, tuple(self.workload_shape(*(tuple(x.shape) for x in inputs))), name, self.layout(*inputs))


def _overlap(x: Tensor, y: Tensor) -> bool:
    if x.numel() == 0 or y.numel() == 0 or x.device.type == "meta":
        return False
    (x0, x1), (y0, y1) = _span(x), _span(y)
    return x0 < y1 and y0 < x1


def _span(x: Tensor) -> tuple[int, int]:
    """The address of the tensor's first byte, and of the byte after its last."""
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def is_transpose(x: Tensor) -> bool:
    """Whether x is the transpose of a row-major matrix."""
    return x.ndim == 2 and x.t().is_contiguous()


def elements(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def normal(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    """N(0, 1). Zeros would draw less power and run faster."""
    return torch.randn(shape, dtype=dtype, device=device, generator=torch.Generator(device).manual_seed(seed))


def one_normal_input(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """make_inputs of an op with one input, of the workload's shape."""
    return (normal(workload.shape, workload.torch_dtype, device, seed),)


def signed_powers(shape: tuple[int, ...], low: float, high: float, device: torch.device, seed: int) -> Tensor:
    """float32 values of random sign and log-uniform magnitude from 2^low to 2^high."""
    generator = torch.Generator(device).manual_seed(seed)
    exponent = torch.rand(shape, device=device, generator=generator) * (high - low) + low
    sign = torch.randint(0, 2, shape, device=device, generator=generator, dtype=torch.float32) * 2 - 1
    return sign * torch.exp2(exponent)


def over_dtypes(op: str, shapes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]) -> tuple[Workload, ...]:
    """Every shape in every dtype; the dtypes of a shape are neighbours."""
    return tuple(Workload(op, shape, dtype) for shape in shapes for dtype in dtypes)
