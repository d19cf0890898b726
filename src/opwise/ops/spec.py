"""What an op is: its inputs, its truth, its error bound and its cost.

Nothing here knows how an op is computed. The float64 reference is the only truth; the error bound is a promise that a careful
float32-accumulating kernel can keep and a careless one cannot.
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
# Of a product's factors: N is row-major, T the transpose of a row-major matrix. NT is x @ w.t(), what nn.Linear computes.
LAYOUTS = ("", "NT", "TN", "TT")
STORAGE_DTYPES = frozenset(DTYPES.values())

# Unit roundoff u: the largest relative error of one rounding to nearest, 2^-p for a significand of p bits.
UNIT_ROUNDOFF: Mapping[torch.dtype, float] = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
U32 = UNIT_ROUNDOFF[torch.float32]
# The least subnormal: the error that underflow alone can cause, whatever the relative precision.
LEAST_SUBNORMAL: Mapping[torch.dtype, float] = {torch.float32: 2.0**-149, torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133}

# Root mean square of one rounding's relative error over u: the error is uniform within +-u of the binade's least number, less above it.
RMS = 3.0**-0.5
FALSE_ALARM = 1e-9  # a launch: at most one in a thousand campaigns of a thousand seeds times a thousand workloads

REDUCTION_SWITCHES = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


@dataclass(frozen=True, order=True)
class Workload:
    """An op at one shape and dtype, written ``softmax/4096x4096/float16``; a matmul's shape is (M, K, N).

    layout: of a matmul's factors, one of LAYOUTS, written ``matmul/16x4096x4096/float16/NT`` unless both are row-major.
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
        """Reads what ``str()`` writes. Raises ValueError with the form expected."""
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
        """Sets torch's own switches to the precision that the op promises, for the time of the block: TF32 products where the dtype
        says so, which every matmul here obeys, and float32 accumulation throughout. torch's default lets cuBLAS add the partial sums
        of a split K in 16 bits: at 583x931x781 in bfloat16 on an H200 that was 25 times over the error bound."""
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
    """How many standard deviations a normally distributed error keeps within on all of so many elements, but for one launch in 10^9.

    P(|N(0, 1)| > z) <= exp(-z^2 / 2), times the elements: z = sqrt(2 log(elements / FALSE_ALARM)). 6.4 for one element, 8.8 for 10^8.
    """
    return math.sqrt(2.0 * math.log(max(elements, 1) / FALSE_ALARM))


def tf32_allowed() -> bool:
    """May a float32 matmul round its factors to TF32? torch's own setting decides, as it does for torch.matmul."""
    return torch.get_float32_matmul_precision() != "highest"


@dataclass(frozen=True)
class Cost:
    """The least work that any implementation must do: each input read once, each output written once, useful flops only.

    `unit` names the peak the flops are held against: `fma` (float32 arithmetic), `tensor_float16`, `tensor_bfloat16`, `tensor_tfloat32`.
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
    """A mathematical operation. Every callable is pure; tensors stay on the device they come on.

    make_inputs(workload, device, seed) -> inputs ~ N(0, 1): what is timed, and checked first.
    hard_inputs(workload, device, seed) -> finite inputs that separate careful kernels from careless ones: checked, never timed.
    whole_inputs: the same, inputs of which the result needs every tile, row end, tail and slice of K; None where any input is of that kind.
    output_shape(*input shapes) -> the output's shape; raises ValueError when the inputs do not fit the op.
    reference(*float64 inputs) -> the float64 result.
    error_bound(workload, reference, *float64 inputs) -> elementwise bound on |out - reference|, float64: what a kernel that accumulates in
        float32 keeps on all elements but for one launch in 10^9 (`deviations`), on inputs whose terms come in no order of size or sign.
    cost(workload) -> Cost.
    sizes(a workload's shape) -> the sizes that its time depends on, themselves a shape of the op: (elements,) unless the op says otherwise.
    layouts: those of LAYOUTS that its kernels are asked for. layout(*inputs) -> which of them they have; "" too where none.
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
    value_of_nothing: float | None = None  # the result where a sum has no terms: mean of nothing is nan, a product over K=0 is 0
    reads_precision: bool = False  # does torch's float32 matmul precision change what is asked for?
    sizes: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda shape: (math.prod(shape),)
    layouts: tuple[str, ...] = ("",)
    layout: Callable[..., str] = lambda *inputs: ""

    def empty_output(self, *inputs: Tensor) -> Tensor:
        """An uninitialised, contiguous output tensor of the right shape, dtype and device."""
        first = inputs[0]
        return torch.empty(self.output_shape(*(x.shape for x in inputs)), dtype=first.dtype, device=first.device)

    def check_inputs(self, *inputs: Tensor) -> None:
        """Raises TypeError or ValueError, saying what was given, what is taken and what to do, unless the inputs fit the op."""
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
        """As check_inputs, for an output tensor given beforehand."""
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
        """The workload that these inputs are, under torch's present float32 matmul precision."""
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
    """First byte and one past the last byte that the tensor can touch."""
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def is_transpose(x: Tensor) -> bool:
    """Of a row-major matrix?"""
    return x.ndim == 2 and x.t().is_contiguous()


def elements(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def normal(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    """N(0, 1): zeros draw less power and run faster, so they are never timed."""
    return torch.randn(shape, dtype=dtype, device=device, generator=torch.Generator(device).manual_seed(seed))


def one_normal_input(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """The inputs that are timed, of an op of one tensor in the workload's shape."""
    return (normal(workload.shape, workload.torch_dtype, device, seed),)


def signed_powers(shape: tuple[int, ...], low: float, high: float, device: torch.device, seed: int) -> Tensor:
    """float32 values of random sign whose magnitudes are spread evenly in log2 between 2^low and 2^high."""
    generator = torch.Generator(device).manual_seed(seed)
    exponent = torch.rand(shape, device=device, generator=generator) * (high - low) + low
    sign = torch.randint(0, 2, shape, device=device, generator=generator, dtype=torch.float32) * 2 - 1
    return sign * torch.exp2(exponent)


def over_dtypes(op: str, shapes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]) -> tuple[Workload, ...]:
    """Every shape in every dtype, shape by shape, so that a table's neighbours are comparable."""
    return tuple(Workload(op, shape, dtype) for shape in shapes for dtype in dtypes)
