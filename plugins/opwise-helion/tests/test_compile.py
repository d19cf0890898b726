"""What Helion writes, compiled by Triton for every architecture without a GPU."""

from __future__ import annotations

import gc
import importlib
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("helion", reason="helion is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from opwise.backends.protocol import variants_of
from opwise.backends.triton_jit.common import launch, specimen
from opwise.ops import OURS as OPS

from opwise_helion import elementwise, matmul, mean, planning, softmax, specimens, square, tiles
from opwise_helion.planning import MOST, Plan, Way, planned, report

pytestmark = pytest.mark.skipif(launch.INTERPRETING, reason="Triton's interpreter replaces the compiler in this process")

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")


def plans(op: str, dtype: str) -> dict[str, Plan]:
    return {name: plan for name, plan in specimens.of(op) if name.startswith(f"{dtype},")}


@pytest.mark.parametrize("arch", [pytest.param(arch, marks=pytest.mark.slow) for arch in ARCHITECTURES[:-1]] + [ARCHITECTURES[-1]])
@pytest.mark.parametrize("op", OPS)
def test_it_compiles(op: str, arch: str) -> None:
    found = dict(specimens.of(op))
    assert {name.partition(",")[0] for name in found} == set(OPS[op].dtypes)
    seen: set[str] = set()
    for name, plan in found.items():
        if (kind := name.partition(",")[0]) in seen and arch != "sm_90":
            continue  # all of them for one architecture are enough
        seen.add(kind)
        registers, spilled, count = report(plan, arch).split(", ")
        assert 0 < int(registers.split()[0]) <= 255
        assert int(count.split()[0]) > 10
        assert int(spilled.split()[0]) <= 64, f"{name} on {arch} spills"


def ptx(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> str:
    seen: list[Any] = []
    compiled = specimen.compiled
    monkeypatch.setattr(specimen, "compiled", lambda *given: seen.append(compiled(*given)) or seen[-1])
    report(plan, "sm_90")
    return str(seen[0].asm["ptx"])


@pytest.mark.parametrize(
    ("dtype", "unit", "never"), [("float16", "wgmma", "tf32"), ("tfloat32", ".tf32.tf32", "f16"), ("float32", "fma.rn.f32", "tf32")]
)
def test_products_are_of_the_unit_that_the_dtype_asks_for(dtype: str, unit: str, never: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ptx(next(iter(plans("matmul", dtype).values())), monkeypatch)
    assert (unit in found, never in found) == (True, False)
    assert ("4096" in found and "-8192" in found) == (dtype == "tfloat32"), "factors are rounded to TF32"


@pytest.mark.parametrize("op", ["square", "gelu", "softmax"])
def test_accesses_are_of_16_bytes_where_tensors_allow(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ptx(next(plan for _, plan in specimens.of(op)), monkeypatch)
    assert ("ld.global.v4" in found, "st.global.v4" in found) == (True, True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "tfloat32", "float32"])
def test_through_descriptors(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Helion has them on a GPU of sm_90 alone: here it is told that there is one. A bind makes descriptors of its own tensors."""
    from helion.autotuner.config_spec import ConfigSpec

    known = ConfigSpec.supports_config_key
    monkeypatch.setattr(ConfigSpec, "supports_config_key", lambda self, key: key == "host_tensor_descriptors" or known(self, key))
    monkeypatch.setattr("helion._compat._supports_tensor_descriptor", lambda: True)
    a = torch.empty(512, 128, dtype=specimens.DTYPES[dtype.replace("tf", "f")])
    b = torch.empty(256, 128, dtype=a.dtype).t()
    out, tf32 = torch.empty(512, 256, dtype=a.dtype), dtype == "tfloat32"
    way = matmul.way_of(tiles.tiles_of(a.dtype, tf32, 2**17)[0], tf32, tma=True)
    found = ptx(planned(way, a, b, out, tf32), monkeypatch)
    assert ("cp.async.bulk.tensor.2d.shared" in found, "cp.async.bulk.tensor.2d.global" in found) == (True, True)
    monkeypatch.setattr(planning, "built_in_triton", lambda *_, **__: lambda *arguments: arguments)
    bind: Any = planning.built(way, (a, b, out), tf32)
    others = torch.empty_like(a), torch.empty_like(b), torch.empty_like(out)
    assert [x.base.data_ptr() for x in bind(*others)] == [x.data_ptr() for x in others]


def source(plan: Plan) -> str:
    return inspect.getsource(inspect.getmodule(plan.kernel.fn))  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "wide"), [(MOST, False), (MOST + 1, True)])
def test_where_indices_are_of_64_bits(n: int, wide: bool) -> None:
    """No memory is touched."""
    x = torch.empty(n, dtype=torch.float16)
    way = Way(square.square_kernel, elementwise.config(1024, 4))
    assert ("tl.int64" in source(planned(way, x, x))) == wide
    assert ("tl.int64" in source(planned(mean.first_of(8192, 8), x, torch.empty(-(-n // 8192))))) == wide


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 33, 19), (17, 33, 1), (17, 1, 19), (64, 64, 64)])
def test_a_short_side_makes_sizes_arguments(shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    m, k, n = shape
    seen: list[Way] = []
    monkeypatch.setattr(matmul, "built", lambda way, *_: seen.append(way))
    a, b, out = torch.empty(m, k), torch.empty(k, n), torch.empty(m, n)
    matmul.build(None, True, False, True, a, b, out)
    assert (seen[0].static, "indexing" in seen[0].config) == (min(shape) >= 16, False)
    numbers = planned(seen[0], a, b, out, False).arguments[3:]
    assert set(numbers) == (set() if min(shape) >= 16 else {*shape, 1})


@pytest.mark.parametrize(("columns", "kernel", "rows", "warps"), [(1, "held", 1024, 4), (931, "held", 2, 4), (16384, "held", 1, 16),
                                                                  (16385, "long", 1, 8)])  # fmt: skip
def test_rows_of_softmax(columns: int, kernel: str, rows: int, warps: int) -> None:
    way = softmax.way_of(None, True, torch.empty(1000, columns, device="meta"))
    assert (way.function.__name__, way.config["block_sizes"][0], way.config["num_warps"]) == (f"{kernel}_kernel", rows, warps)


@pytest.mark.parametrize("op", OPS)
def test_there_are_ways_to_choose_among_by_measurement(op: str) -> None:
    assert len(variants_of(importlib.import_module(f"opwise_helion.{op}"))) >= 5


def test_a_launch_passes_what_helion_passes_and_a_build_keeps_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind_of(kernel: Any, grid: Any, *samples: Any, **options: Any) -> Callable[..., Any]:
        assert options == {"num_warps": 4, "num_stages": 3}
        return lambda *arguments: arguments

    monkeypatch.setattr(planning, "built_in_triton", bind_of)
    a, b, out = torch.empty(5, 7), torch.empty(3, 7).t(), torch.empty(5, 3)
    bind: Any = planning.built(matmul.way_of((16, 32, 32, 4, 3), False, static=False), (a, b, out), False)
    others = torch.empty(5, 7), torch.empty(3, 7).t(), torch.empty(5, 3)
    passed = bind(*others)
    assert [x is y for x, y in zip(passed, others, strict=False)] == [True] * 3
    assert sorted(passed[3:]) == [1, 1, 1, 3, 3, 5, 7, 7, 7], "M, K, N and the strides"
    kept = [weakref.ref(x) for x in (a, b, out)]
    del a, b, out
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3
