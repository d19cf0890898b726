"""Tables of softmax, and of Numba's products: a configuration's name is of what is built, and what is said to ship is what plans take."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recorded_runs import TOY
from tuned_tables import forget, known_ways, row, table

from opwise.backends import tuned, tuned_table
from opwise.backends.gemm import gpu
from opwise.backends.gemm.gpu import H100, HOPPER, Machine
from opwise.ops.spec import Workload

BUILT = pytest.mark.parametrize("name", ["cuda_src/softmax", "triton_jit/softmax", "numba_cuda/softmax", "numba_cuda/matmul"])


class OnHopper:
    """A tensor that is asked for what plans ask, and is nowhere."""

    is_cuda, device = True, torch.device("cuda", 0)

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape, self.dtype = shape, dtype

    def is_contiguous(self) -> bool:
        return True

    def data_ptr(self) -> int:
        return 1 << 20

    def element_size(self) -> int:
        return self.dtype.itemsize

    def view(self, dtype: torch.dtype) -> OnHopper:
        return self

    def __getitem__(self, index: Any) -> OnHopper:
        return self


@pytest.fixture
def built(name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Workload], str]:
    """workload -> the name of what the backend's build makes of it on an H100."""
    known_ways(name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=HOPPER.sms))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: HOPPER.capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: TOY.device)
    monkeypatch.setattr(Machine, "of", lambda device: HOPPER)
    monkeypatch.setattr(gpu, "of", lambda device: H100)
    module = importlib.import_module(f"opwise.backends.{name.replace('/', '.')}") if "cuda_src" not in name else None
    make = {"cuda_src": of_cuda, "triton_jit": of_triton, "numba_cuda": of_numba}[name.partition("/")[0]](module, monkeypatch)

    def of(workload: Workload) -> str:
        forget()
        dtype, shapes = workload.torch_dtype, [workload.shape] * 2
        if workload.op == "matmul":
            m, k, n = workload.shape
            shapes = [(m, k), (k, n), (m, n)]
            torch.set_float32_matmul_precision("high" if workload.dtype == "tfloat32" else "highest")
        try:
            return make(*(OnHopper(shape, dtype) for shape in shapes))
        finally:
            torch.set_float32_matmul_precision("highest")

    return of


def of_cuda(module: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    from opwise.backends.cuda_src.recipes import RECIPES
    from opwise.backends.cuda_src.softmax import name_of

    return lambda x, out: name_of(RECIPES["softmax"][""].plan(x, out))


def of_numba(module: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Kernels that are their own names."""
    if module.__name__.endswith("matmul"):
        monkeypatch.setattr(module, "build_tma", lambda product, tile, *_: tile.name)
        monkeypatch.setattr(module, "build_any_gpu", lambda product, tile, device: tile.name)
    else:
        plan = importlib.import_module(f"{module.__name__}.plan")

        def kernel(way: Any) -> Any:
            return SimpleNamespace(fixed=lambda grid, *sizes, device: plan.name_of(way))

        monkeypatch.setattr(module, "in_registers", lambda dtype, columns, wide, threads: (kernel(plan.Registers(threads)), 1))
        for name in ("build_cluster", "build_stream"):
            monkeypatch.setattr(module, name, lambda x, way, *more: plan.name_of(way))
    made: Callable[..., str] = module.build
    return made


def of_triton(module: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The kernels' own builds; what they would compile says which it is. A multiprocessor has room for two programs, whatever they are."""
    taken: list[str] = []

    def named(dtype: torch.dtype, num_warps: int, fixed: Mapping[str, Any]) -> str:
        if "COMPUTING" in fixed:
            return "stream"
        if "BLOCKS" in fixed:
            return f"cluster{fixed['BLOCKS']}x{num_warps}x{fixed['HELD']}x{fixed['PHASES']}"
        if "ROWS" in fixed:
            return f"tile{fixed['ROWS'] * fixed['COLUMNS']}x{num_warps}"
        return f"row{num_warps}" if "COLUMNS" in fixed else "twice"

    def noted(kernel: Any, grid: Any, *samples: Any, num_warps: int, **fixed: Any) -> Callable[..., None]:
        taken.append(named(samples[0].dtype, num_warps, fixed))
        return lambda *_: None

    def nowhere(size: int, device: Any, zeroed: int = 0) -> Any:
        return lambda: SimpleNamespace(memory=SimpleNamespace(tensor=OnHopper((size // 4,), torch.float32)))

    kinds = ("block", "twice", "cluster", "stream", "configurations")
    others = {kind: importlib.import_module(f"{module.__name__}.{kind}") for kind in kinds}
    stubs = {
        "built": noted, "built_of_one": noted, "lender": nowhere, "processors": lambda device: HOPPER.sms, "INTERPRETING": False,
        "in_clusters": lambda *_: None,
    }  # fmt: skip
    for each in others.values():
        for name, stub in stubs.items():
            monkeypatch.setattr(each, name, stub, raising=False)

    for kernel in ("cluster", "stream"):
        stub = SimpleNamespace(warmup=lambda *_, **__: None)
        monkeypatch.setattr(importlib.import_module(f"{module.__name__}.{kernel}_kernel"), f"{kernel}_kernel", stub)

    def made(x: Any, out: Any) -> str:
        taken.clear()
        module.build(x, out)
        return taken.pop()

    return made


@BUILT
def test_a_name_is_of_what_is_built_and_the_shipped_one_of_what_the_plan_takes(name: str, built: Callable[[Workload], str]) -> None:
    of = known_ways(name)
    assert set(of.workloads(quick=True)) < set(of.workloads(quick=False))
    for workload in of.workloads(quick=False):
        assert built(workload) == of.choose(workload), workload
        for configuration in of.configurations(workload):
            with tuned.forced(name, configuration) as said:
                assert built(workload) == configuration, workload
                assert said.asked


@pytest.mark.parametrize("rows", [1, 16, 300])
@pytest.mark.parametrize("columns", [24960, 49152, 65552, 2**20, 1_100_032, 3_000_000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_triton_ships_for_few_rows_is_offered_too(rows: int, columns: int, dtype: str) -> None:
    of = known_ways("triton_jit/softmax")
    workload = Workload("softmax", (rows, columns), dtype)
    assert of.choose(workload) in of.configurations(workload)


@BUILT
def test_what_was_measured_is_built_and_other_sizes_keep_theirs(
    name: str, built: Callable[[Workload], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = known_ways(name)
    measured, other = (w for w in of.workloads(quick=False) if w.shape in ((2048, 65536), (1024, 131072), (64, 4096, 4096), (2048,) * 3)
                       and w.dtype == "float16")  # fmt: skip
    shipped, kept = of.choose(measured), of.choose(other)
    winner = next(name for name in of.configurations(measured) if name != shipped)
    made = table(name, row(str(measured), shipped, {shipped: 2.0, winner: 1.0}))
    monkeypatch.setenv(tuned_table.VARIABLE, "a folder of tables")
    monkeypatch.setattr(tuned, "_stored", lambda name, index, root: tuned.Choices(made))
    assert (built(measured), built(other)) == (winner, kept)
