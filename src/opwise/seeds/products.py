"""Products: the textbook CUDA kernel against its check and cuBLAS, Triton's 25 lines against cuBLAS, and the kernels that torch calls by
size."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import Tensor

from opwise.backends import implementation, probe
from opwise.backends.protocol import Launch
from opwise.measure.validate import judge
from opwise.ops import OPS
from opwise.ops.spec import Workload, normal
from opwise.seeds.clocks import race, timed, told_us
from opwise.seeds.experiment import Findings
from opwise.seeds.models import python_lines
from opwise.seeds.place import Place
from opwise.seeds.profiles import NO_GPU, profiled, warmed

TEXTBOOK, CUBLAS = "cupy_raw/matmul:textbook", "torch_eager/matmul"
SQUARE = Workload("matmul", (1024, 1024, 1024), "float32")
CLOSE = 1e-4  # the source's check, relative to the largest element of the loop's result
HALF = Workload("matmul", (4096, 4096, 4096), "float16")
PAR = 0.9  # of cuBLAS's speed


def textbook(place: Place) -> Findings:
    a, b = OPS["matmul"].make_inputs(SQUARE, place.device, 0)
    out = OPS["matmul"].empty_output(a, b)
    implementation(TEXTBOOK, place.device).prepare(a, b, out=out)()
    place.wait()
    worst = float((out.cpu().double() - a.cpu().double() @ b.cpu().double()).abs().max())
    largest = float(out.abs().max())
    raced = race(place, SQUARE, [TEXTBOOK, CUBLAS])
    slower = raced.over(TEXTBOOK, CUBLAS)
    return Findings(
        f"{told_us(raced.us(TEXTBOOK))}, cuBLAS {told_us(raced.us(CUBLAS))}",
        f"results match: largest difference {worst:.2g} of values up to {largest:.0f}; {slower:.1f} times slower than cuBLAS",
        worst <= CLOSE * largest and slower > 1,
        raced.us(TEXTBOOK),
        {"textbook, cold, us": raced.us(TEXTBOOK), "cuBLAS, cold, us": raced.us(CUBLAS), "textbook over cuBLAS": slower,
         "largest difference": worst, "largest element": largest},
    )  # fmt: skip


def short(place: Place) -> Findings:
    """Counts lines and, without a GPU, runs in Triton's interpreter on small tiles; on a GPU times it against cuBLAS, both also with a
    leaky ReLU."""
    probe("triton_jit", place.device)
    from opwise.seeds.triton_kernels import MOST_LINES, SMALL_TILE, TILE, bound_matmul, matmul

    lines = python_lines(inspect.getsource(getattr(matmul, "fn", matmul)))
    workload = HALF if place.gpu else Workload("matmul", (72, 40, 96), "float16")
    verdicts = [_judged(place, workload, leaky, bound_matmul(leaky, TILE if place.gpu else SMALL_TILE)) for leaky in (False, True)]
    right = not any(verdicts)
    said = "right in the interpreter, with the leaky ReLU too" if right else "; ".join(filter(None, verdicts))
    if not place.gpu or not right:
        return Findings(f"{lines} lines", said, lines <= MOST_LINES and right, figures={"lines": lines})
    cold = _against_cublas(place, bound_matmul)
    plain, fused = cold["cuBLAS"] / cold["Triton"], cold["cuBLAS + leaky ReLU"] / cold["Triton, leaky ReLU fused"]
    flops = OPS["matmul"].cost(HALF).flops
    return Findings(
        f"{lines} lines, {flops / cold['Triton'] / 1e6:.0f} Tflop/s, cuBLAS {flops / cold['cuBLAS'] / 1e6:.0f}",
        f"{plain:.2f} of cuBLAS's speed; with a leaky ReLU, fused against a kernel behind cuBLAS, {fused:.2f}",
        lines <= MOST_LINES and plain >= PAR,
        cold["Triton"],
        {
            "lines": lines,
            "speed over cuBLAS": plain,
            "speed over cuBLAS, leaky ReLU": fused,
            **{f"{n}, cold, us": us for n, us in cold.items()},
        },
    )


def _judged(place: Place, workload: Workload, leaky: bool, bind: Callable[..., Launch]) -> str:
    """ "" or what is wrong. A leaky ReLU moves no two values further apart: the product's bound holds behind it."""
    spec = OPS["matmul"]
    a, b = spec.make_inputs(workload, place.device, 0)
    out = spec.empty_output(a, b).fill_(float("nan"))
    bind(a, b, out)()
    place.wait()
    reference = spec.reference(a.double(), b.double())
    bound = spec.error_bound(workload, reference, a.double(), b.double())
    return judge(out, torch.nn.functional.leaky_relu(reference) if leaky else reference, bound).reason


def _against_cublas(place: Place, bound_matmul: Callable[[bool], Callable[..., Launch]]) -> dict[str, float]:
    spec = OPS["matmul"]
    cost = spec.cost(HALF)
    with HALF.precision(), torch.no_grad():
        sets: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

        def tensors(i: int) -> tuple[Tensor, Tensor, Tensor]:
            if i not in sets:
                a, b = spec.make_inputs(HALF, place.device, i)
                sets[i] = (a, b, spec.empty_output(a, b))
            return sets[i]

        def cublas(i: int, leaky: bool) -> Launch:
            a, b, out = tensors(i)

            def launch() -> None:
                torch.mm(a, b, out=out)
                if leaky:
                    torch.nn.functional.leaky_relu_(out)

            return launch

        found = timed(place, {
            "Triton": lambda i: bound_matmul(False)(*tensors(i)), "cuBLAS": lambda i: cublas(i, False),
            "Triton, leaky ReLU fused": lambda i: bound_matmul(True)(*tensors(i)), "cuBLAS + leaky ReLU": lambda i: cublas(i, True),
        }, cost.bytes)  # fmt: skip
    return {name: timing.median_us for name, timing in found.items()}


def kernel_names(place: Place) -> Findings:
    """matmul(128) and matmul(2048) in float32: which kernels torch calls, and the times of the small one, as in the source. Without a GPU,
    the CPU's part."""
    called = {}
    for n in (128, 2048):
        a, b = (normal((n, n), torch.float32, place.device, seed) for seed in (0, 1))
        warmed(place, lambda a=a, b=b: a @ b)  # type: ignore[misc]
        called[n] = profiled(place, lambda a=a, b=b: a @ b)  # type: ignore[misc]
    names = {n: [name for name, _ in found.kernels] for n, found in called.items()}
    small, tables = called[128], {f"matmul({n})": found.table for n, found in called.items()}
    if not any(names.values()):
        return Findings(NO_GPU, "no kernel was recorded", not place.gpu, tables=tables)
    return Findings(
        f"{told_us(small.kernel_us)} CUDA, {told_us(small.cpu_us)} CPU",
        f"128: {', '.join(names[128])}; 2048: {', '.join(names[2048])}",
        bool(names[128]) and bool(names[2048]) and names[128] != names[2048],
        small.kernel_us,
        {"128, CUDA us": small.kernel_us, "128, CPU us": small.cpu_us, "2048, CUDA us": called[2048].kernel_us},
        tables=tables,
    )
