"""The experiments themselves: what needs no GPU shows what it is to show; what does is run with the CPU in the GPU's place."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import support
import torch
from pretend_gpu import PretendEvent, PretendPlace

from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.seeds import (
    blocking,
    clocks,
    faults,
    gelu,
    inline,
    lecture6,
    means,
    models,
    products,
    profiles,
    repair,
    softmax,
    squares,
    training,
)
from opwise.seeds.experiment import Findings
from opwise.seeds.place import Place

CPU = Place(torch.device("cpu"))
RIGHT = "torch_eager/square"


@pytest.fixture
def pretending(monkeypatch: pytest.MonkeyPatch) -> PretendPlace:
    """Events are the CPU's clock, operators of torch count as kernels, and a candidate gets milliseconds."""
    monkeypatch.setattr(torch.cuda, "Event", PretendEvent)
    monkeypatch.setattr(profiles, "_is_kernel", lambda event: str(event.name).startswith("aten::"))
    monkeypatch.setattr(profiles, "_device_us", lambda average: float(average.self_cpu_time_total))
    monkeypatch.setattr("opwise.measure.timing.WARM_UP_S", 0.001)
    monkeypatch.setattr("opwise.seeds.clocks.MOST_COLD_S", 0.002)
    place = PretendPlace()
    plain = place.clock.cold
    monkeypatch.setattr(place.clock, "cold", lambda candidates, **_: plain(candidates, budget_s=0.002, warm_up_s=0.001))
    return place


# -- without a GPU -----------------------------------------------------------------------------------------------------------


@support.interpreted
def test_the_classroom_gelu_in_triton_is_nan_above_ten() -> None:
    found = faults.gelu_nan(CPU)
    assert found.shown
    # e^2a overflows float32 where 2a passes 88.72: from x = 10.06 on.
    a = math.sqrt(2 / math.pi) * 2
    first = found.figures["first x that is nan"]
    assert a * (first + 0.044715 * first**3) > 88.72 > a * (first - 1 / 64 + 0.044715 * (first - 1 / 64) ** 3)


def test_the_classroom_gelu_in_cuda_computes_in_double() -> None:
    support.needs("cupy")
    found = faults.gelu_double(CPU)
    assert found.shown
    assert found.figures["double instructions, classroom"] > 20
    assert found.figures["double instructions, opwise"] == 0


def test_the_naive_softmax_is_nan_where_the_shifted_one_is_right() -> None:
    found = faults.softmax_unshifted(CPU)
    assert found.shown
    x = torch.linspace(-10.0, 100.0, 257)
    assert found.figures["nan"] == 3 * int((x.exp() == math.inf).sum()), "inf / inf, and nothing else"


@support.interpreted
def test_the_short_matmul_is_right_and_short() -> None:
    found = products.short(CPU)
    assert found.shown, found.found
    from opwise.seeds.triton_kernels import MOST_LINES, bound_matmul, matmul

    assert 8 < found.figures["lines"] <= MOST_LINES == 25
    source = inspect.getsource(matmul.fn)
    assert found.figures["lines"] <= len([line for line in source.splitlines() if line.strip()])
    with pytest.raises(ValueError, match="float16 with a multiple of 8"):
        bound_matmul(False)(*(torch.zeros(8, 12, dtype=torch.float16) for _ in range(3)))


@support.interpreted
def test_a_wrong_product_is_not_called_right(monkeypatch: pytest.MonkeyPatch) -> None:
    from opwise.seeds import triton_kernels

    monkeypatch.setattr(triton_kernels, "bound_matmul", lambda leaky, tile: lambda a, b, out: lambda: out.copy_(a @ b).mul_(1.01))
    found = products.short(CPU)
    assert not found.shown
    assert "elements wrong" in found.found


@support.interpreted
def test_the_scalar_mean_sums_every_element_once() -> None:
    from opwise.backends import probe

    probe("triton_jit", CPU.device)
    from opwise.seeds.triton_kernels import bound_scalar_mean

    x, partials = torch.randn(70), torch.empty(3)
    bound_scalar_mean(x, partials, 32)()
    torch.testing.assert_close(partials, torch.stack([part.sum() for part in x.split(32)]))


@pytest.mark.parametrize("experiment", [means.trace, lecture6.stacks, training.dynamo, training.micro_batches], ids=lambda f: f.__name__)
def test_what_the_profiler_and_dynamo_do_without_a_gpu(experiment: Callable[[Place], Findings]) -> None:
    found = experiment(CPU)
    assert found.shown, found.found
    assert found.us is None


@pytest.mark.parametrize(
    ("experiment", "titles", "operators"),
    [
        (squares.through_the_profiler, list(squares.WAYS), ["aten::square", "aten::mul", "aten::pow"]),
        (means.tables, list(means.WAYS), ["aten::mean", "aten::mean", "aten::div"]),
        (products.kernel_names, ["matmul(128)", "matmul(2048)"], ["aten::mm", "aten::mm"]),
    ],
    ids=["squares", "means", "matmul"],
)
def test_profilers_print_their_tables(experiment: Callable[[Place], Findings], titles: list[str], operators: list[str]) -> None:
    found = experiment(CPU)
    assert found.shown, found.found
    assert found.us is None
    assert list(found.tables) == titles
    for table, operator in zip(found.tables.values(), operators, strict=True):
        assert operator in table
        assert "Self CPU time total" in table


@support.interpreted
def test_triton_partial_sums_are_within_the_bound() -> None:
    found = means.partials(CPU)
    assert found.shown, found.found


def test_the_profiler_finds_the_bottleneck_and_the_repairs_change_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    found = repair.repaired(CPU, side=64)
    assert found.shown, found.found
    assert f"blames {repair.SEARCH!r}" in found.found
    assert found.here.startswith("on the CPU: 1 -> ")
    memory = [mb for name, mb in found.figures.items() if "Self CPU Mem" in name]
    assert memory[:2] == pytest.approx([-(64**3) * 8 / 1e6, -(64**3) * 4 / 1e6], rel=0.01), "the copy in float64, then in float32"
    assert 0 >= memory[2] >= -1.01 * 64**3 / 1e6, "no copy: at most the mask, a byte an element, which torch 2.11 counts here"
    assert all("Self CPU Mem" in table and "Source Location" in table for table in found.tables.values())
    monkeypatch.setitem(repair.STEPS, "float32, on the device", (torch.float32, lambda table, level: torch.argwhere(table < level)))
    assert not repair.repaired(CPU, side=8).shown, "a repair that picks other cells is none"


@pytest.mark.parametrize("kernel", [inline.SQUARE_KERNEL, inline.GELU_KERNEL], ids=["square", "gelu"])
def test_the_inline_kernels_compile_and_compute_in_float(kernel: str) -> None:
    support.needs("cupy")
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(kernel, "inline.cu", (), ())
    try:
        nvrtc.compileProgram(program, ("--gpu-architecture=sm_90",))
        ptx = nvrtc.getPTX(program)
    finally:
        nvrtc.destroyProgram(program)
    assert b".f32" in ptx
    assert b".f64" not in ptx


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (torch.AcceleratorError("CUDA error: device-side assert triggered\nCompile with TORCH_USE_CUDA_DSA"),
         "AcceleratorError: CUDA error: device-side assert triggered"),
        (RuntimeError("\n  second line\n"), "RuntimeError: second line"),
        (KeyError(), "KeyError: no message"),
    ],
    ids=lambda given: type(given).__name__,
)  # fmt: skip
def test_a_fault_is_told_with_its_type_and_first_line(error: Exception, told: str) -> None:
    def fail() -> None:
        raise error

    assert blocking.raised(fail) == {"function": "raised", "error": told}
    assert blocking.raised(lambda: None) is None


def test_the_faulty_program_names_the_function_that_failed() -> None:
    """On a CPU an index out of bounds is found at once: the child, its environment and what it tells are those of a GPU."""
    assert blocking.blamed(True, "cpu") == ("faulty", "IndexError: index 99 is out of bounds for dimension 0 with size 8")


def test_lines_are_those_of_a_model_s_own_files() -> None:
    paths = [path for model in models.MODELS for op in OPS for path in models.files(model, op)]
    assert len(paths) == len(set(paths)), "no file counts for two models"
    assert all({op for op in OPS if list(models.files(model, op))} == set(OPS) for model in models.MODELS)
    from opwise.backends.triton_jit.softmax.plain import plain_kernel

    assert models.plain_lines("blocks, Triton", "softmax") == models.python_lines(inspect.getsource(plain_kernel.fn))
    found = models.lines(CPU)
    assert found.figures["threads, Numba, softmax, plain kernel, lines"] > found.figures["blocks, Triton, softmax, plain kernel, lines"]


# -- the GPU's code on the CPU -----------------------------------------------------------------------------------------------


def small(op: str, *shape: int, dtype: str = "float32") -> Workload:
    return Workload(op, shape, dtype)


DRY: dict[str, tuple[ModuleType, str, dict[str, Any]]] = {
    "squares": (squares, "timed", {"WORKLOAD": small("square", 64, 64)}),
    "squares-profiled": (squares, "through_the_profiler", {}),
    "means": (means, "timed", {"WORKLOAD": small("mean", 64, 64), "RUNS": 3}),
    "means-profiled": (means, "tables", {}),
    "gelu": (gelu, "timed", {"WORKLOAD": small("gelu", 64, 64), "WAYS": {"manual": gelu.MANUAL, "torch": gelu.FUSED}}),
    "softmax-sweep": (
        softmax,
        "sweep",
        {"ROWS": 4, "COLUMNS": (64, 100), "WAYS": {**softmax.WAYS, "Triton": "torch_eager/softmax:manual"}},
    ),
    "softmax-odd": (softmax, "odd_shape", {"ODD": small("softmax", 3, 64), "TEXTBOOK": "torch_eager/softmax:manual"}),
    "textbook-matmul": (products, "textbook", {"SQUARE": small("matmul", 32, 32, 32), "TEXTBOOK": "torch_eager/matmul"}),
    "kernel-names": (products, "kernel_names", {}),
    "wall-clock": (lecture6, "wall_clock", {"SIZES": (16, 32)}),
    "fault-one-sample": (faults, "one_sample", {}),
    "fault-no-flush": (faults, "no_flush", {"SIZES": (16, 32)}),
}


@pytest.mark.parametrize("name", DRY)
def test_the_code_for_a_gpu_runs(name: str, pretending: PretendPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    module, function, small_sizes = DRY[name]
    for constant, value in small_sizes.items():
        assert hasattr(module, constant)
        monkeypatch.setattr(module, constant, value)
    found: Findings = getattr(module, function)(pretending)
    assert found.here
    assert found.found
    assert found.figures
    assert all(isinstance(v, int | float) and math.isfinite(v) for v in found.figures.values())


def test_a_wrong_implementation_gets_no_time(pretending: PretendPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A race judges the very buffers that were timed: an implementation that goes wrong while it is timed loses its time."""
    real, calls = clocks.implementation, []

    class Spoilt:
        def prepare(self, x: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
            def launch() -> None:
                calls.append(1)
                torch.mul(x, x, out=out)
                if len(calls) > 3:
                    out[0] = 7.0

            return launch

    monkeypatch.setattr(clocks, "implementation", lambda name, device: Spoilt() if name == "spoilt" else real(name, device))
    found = clocks.race(pretending, small("square", 33), ["spoilt", RIGHT])
    assert set(found.timings) == {RIGHT}
    assert "wrong: 1 of 33" in found.absent["spoilt"]
