"""The bars: what each hand-written backend must reach on an NVIDIA H200, cold L2, launches interleaved, at full clock; products on tensor
cores power-capped too. A time that the power cap does not change counts in both states.

Where a bar stands for a size ("64 MiB"), a tensor of the input has that many bytes, whatever the dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from opwise.clocks import TOLD
from opwise.ops import OPS
from opwise.ops.spec import Workload, elements, over_dtypes
from opwise.record import FULL, STATES

HELD = ("torch_inline", "cupy_raw", "triton_jit", "numba_cuda")  # the order of `_four`
DEVICE = "nvidia-h200"  # whose bars these are
EACH, GEOMETRIC_MEAN, SUM = "each", "geometric mean", "sum"
DTYPES, HALVES = ("float32", "float16", "bfloat16"), ("float16", "bfloat16")
MIB = 2**20


@dataclass(frozen=True, eq=False)
class Bar:
    """`figure`: the quantity compared (judging.FIGURES). `over`: how the workloads' figures are combined: EACH must pass, or their
    GEOMETRIC_MEAN, or their SUM. `required`: backend -> the least value, or with `at_most` the greatest. `filters`: arguments that narrow
    `opwise run --set bars` to these workloads. A `first_call` is measured once per op, whatever the workload. `state`: the state of the
    clock in which a kernel's figure is taken."""

    name: str
    what: str
    figure: str
    workloads: tuple[Workload, ...]
    required: Mapping[str, float]
    filters: str
    over: str = EACH
    at_most: bool = False
    first_call: bool = False
    state: str = FULL

    @property
    def command(self) -> str:
        """The command that measures it."""
        return "opwise run --set smoke --first-call" if self.first_call else f"opwise run --set bars {self.filters}"

    def passes(self, backend: str, value: float) -> bool:
        return value <= self.required[backend] if self.at_most else value >= self.required[backend]


def _four(*bars: float) -> Mapping[str, float]:
    return dict(zip(HELD, bars * (len(HELD) // len(bars)), strict=True))


def _size(workload: Workload) -> int:
    return elements(workload.shape) * workload.torch_dtype.itemsize


def _elementwise(op: str) -> tuple[Workload, ...]:
    shapes = ((4096, 4096), (4096, 8192), (8192, 8192), (10007, 10009), (16384, 16384))
    return tuple(w for w in over_dtypes(op, shapes, DTYPES) if _size(w) >= 64 * MIB)


def _means(mib: int) -> tuple[Workload, ...]:
    """Matrices of that size, square or twice as wide."""
    found = []
    for dtype in DTYPES:
        n = mib * MIB // Workload("mean", (), dtype).torch_dtype.itemsize
        rows = 2 ** (int(math.log2(n)) // 2)
        found.append(Workload("mean", (rows, n // rows), dtype))
    return tuple(found)


def _rows(*columns: int) -> tuple[Workload, ...]:
    """softmax over tensors of 256 MiB, or as large as the set `core` has them with as long rows."""
    core = {shape[1]: shape[0] for shape in (w.shape for w in OPS["softmax"].workloads["core"]) if elements(shape) >= 128 * MIB}
    sizes = {dtype: 256 * MIB // Workload("softmax", (), dtype).torch_dtype.itemsize for dtype in DTYPES}
    return tuple(Workload("softmax", (core.get(n, sizes[dtype] // n), n), dtype) for n in columns for dtype in DTYPES)


# Short rows, odd ones among them, in tensors of 64 MiB or a row more.
SHORT_ROWS = tuple(
    Workload("softmax", (-(-64 * MIB // (n * Workload("softmax", (), dtype).torch_dtype.itemsize)), n), dtype)
    for n in (8, 13, 31, 64, 127, 255, 781, 1024)
    for dtype in DTYPES
)
SQUARES = tuple((n, n, n) for n in (1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384))
# Thin in K, in M and in N; few tiles and a long K.
UNEVEN = (
    *((4096, k, 4096) for k in (128, 512, 2048, 16384)), (8192, 128, 8192), *((m, 4096, 4096) for m in (128, 512, 2048, 8192)),
    *((4096, 4096, n) for n in (128, 512, 2048, 8192)), (128, 16384, 128), (512, 8192, 512), (1024, 8192, 1024),
)  # fmt: skip
LEAST_ROWS = 64  # of a layer's product; fewer are held to no bar
LAYER_PRODUCTS = tuple(w for w in OPS["matmul"].workloads["layers"] if w.shape[0] >= LEAST_ROWS)
LINEAR = tuple(w for w in LAYER_PRODUCTS if w.layout == "NT")
HALF_PRODUCTS = tuple(dict.fromkeys((*over_dtypes("matmul", SQUARES + UNEVEN, HALVES), *(w for w in LAYER_PRODUCTS if not w.layout))))
LARGE = tuple((n, n, n) for n in (2048, 4096, 8192))
TINY = over_dtypes("square", ((1024,),), DTYPES)
OURS = ("square", "mean", "gelu", "softmax", "matmul")  # whatever ops else are installed
FIRST = tuple(OPS[op].workloads["core"][0] for op in OURS)


def _bars() -> Iterator[Bar]:
    for op in ("square", "gelu"):
        yield Bar(f"{op}-sol", f"{op}: SOL, 64 MiB or more", "sol", _elementwise(op), _four(0.97), op)
    for mib, bar in ((64, 0.88), (256, 0.94), (1024, 0.97)):
        yield Bar(f"mean-sol-{mib}", f"mean: SOL at {mib} MiB", "sol", _means(mib), _four(bar), "mean")
    small = over_dtypes("mean", ((1024, 1024),), DTYPES)
    yield Bar("mean-small", "mean, 1024x1024: speed over torch eager's", "speed", small, _four(1.0), "mean")
    yield Bar("softmax-short", "softmax: SOL, rows of 8 to 1024, 64 MiB", "sol", SHORT_ROWS, _four(0.88), "softmax")
    rows, long_rows = _rows(*(2**k for k in range(8, 16))), _rows(*(2**k for k in range(16, 21)))
    yield Bar("softmax-sol", "softmax: SOL, rows of 256 to 32768, 256 MiB or more", "sol", rows, _four(0.95, 0.95, 0.95, 0.93), "softmax")
    yield Bar("softmax-long", "softmax: SOL, rows of 65536 to 1048576", "sol", long_rows, _four(0.95, 0.95, 0.90, 0.90), "softmax")
    means, worst, half_filters = _four(1.00, 1.00, 0.97, 0.97), _four(0.93, 0.93, 0.88, 0.88), "matmul float16 bfloat16"
    for state in STATES:
        halves = f"matmul, 16 bits, {TOLD[state]}: speed over cuBLAS's"
        yield Bar(f"matmul-half-mean-{state}", halves, "speed", HALF_PRODUCTS, means, half_filters, over=GEOMETRIC_MEAN, state=state)
        yield Bar(f"matmul-half-worst-{state}", halves, "speed", HALF_PRODUCTS, worst, half_filters, state=state)
        linear = f"matmul, x @ w.t() of layers, 16 bits, {TOLD[state]}: speed over cuBLAS's"
        yield Bar(f"matmul-linear-mean-{state}", linear, "speed", LINEAR, means, "matmul NT", over=GEOMETRIC_MEAN, state=state)
        yield Bar(f"matmul-linear-worst-{state}", linear, "speed", LINEAR, worst, "matmul NT", state=state)
    large = {dtype: over_dtypes("matmul", LARGE, (dtype,)) for dtype in ("tfloat32", "float32")}
    for state in STATES:
        what, bars = f"matmul, tfloat32, {TOLD[state]}: speed over cuBLAS's", _four(0.95, 0.95, 0.95, 0.80)
        yield Bar(f"matmul-tfloat32-{state}", what, "speed", large["tfloat32"], bars, "matmul tfloat32", state=state)
    what, bars = "matmul, float32: speed over cuBLAS's", _four(1.00, 1.00, 0.90, 0.90)
    yield Bar("matmul-float32", what, "speed", large["float32"], bars, "matmul float32")
    launches, calls = _four(0.8, 1.0, 1.5, 1.5), _four(1.0, 1.2, 1.7, 1.7)
    yield Bar("launch", "launch cost over torch.square(x, out=y)'s", "launch", TINY, launches, "square 1024", at_most=True)
    yield Bar("call", "call cost over torch.square(x)'s", "call", TINY, calls, "square 1024", at_most=True)
    for figure, what, bars in (
        ("cached_s", "first calls of all ops, caches full, s", _four(2, 0.5, 1, 2)),
        ("cold_s", "first calls of all ops, caches empty, 16 cores, s", _four(120, 5, 10, 10)),
    ):
        yield Bar(f"first-call-{figure.removesuffix('_s')}", what, figure, FIRST, bars, "", over=SUM, at_most=True, first_call=True)


BARS = tuple(_bars())
# The workload set `bars`, op by op.
_TIMED = {w for bar in BARS if not bar.first_call for w in bar.workloads}
WORKLOADS = tuple(sorted(_TIMED, key=lambda w: (OURS.index(w.op), w.shape, w.dtype, w.layout)))
