"""Every op, dtype and architecture compiled to a cubin without a GPU, and what is known to build is what the specimens hold."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import struct
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cuda.tile", reason="cuda-tile is not installed")

from conftest import needs_compiler
from opwise.backends.cubin import instructions
from opwise.backends.protocol import BackendUnavailable, variants_of
from opwise.ops import OURS as OPS

import opwise_cutile
from opwise_cutile import launching, tileiras
from opwise_cutile.tileiras import Array, Specimen, cubin, made_ahead

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
SPECIMENS: dict[str, tuple[Specimen, ...]] = {op: tuple(importlib.import_module(f"opwise_cutile.{op}").specimens()) for op in OPS}


def dtype_of(specimen: Specimen) -> str:
    return "tfloat32" if specimen.name == "matmul" and specimen.parameters[-1] is True else str(specimen.parameters[0].dtype)[6:]


def first(op: str, dtype: str) -> Specimen:
    return next(specimen for specimen in SPECIMENS[op] if dtype_of(specimen) == dtype)


@pytest.fixture
def fresh() -> Iterator[None]:
    """What the process remembers of compilers and cubins is of one environment."""
    for remembered in (tileiras.tileiras, cubin):
        remembered.cache_clear()
    yield
    for remembered in (tileiras.tileiras, cubin):
        remembered.cache_clear()


def test_the_entry_point_leads_to_a_backend_of_all_ops() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["opwise.backends"] == {"cutile": opwise_cutile.__name__}
    assert all(variants_of(importlib.import_module(f"opwise_cutile.{op}")) for op in OPS)


@pytest.mark.parametrize("op", OPS)
def test_no_op_is_longer_than_80_lines(op: str) -> None:
    assert len((Path(opwise_cutile.__file__).parent / f"{op}.py").read_text().splitlines()) <= 80


def test_on_a_cpu_it_says_what_to_do() -> None:
    with pytest.raises(BackendUnavailable, match="use a CUDA device"):
        opwise_cutile.probe(torch.device("cpu"))


@needs_compiler
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("op", "dtype"), [(op, dtype) for op, spec in OPS.items() for dtype in spec.dtypes])
def test_it_compiles(op: str, dtype: str, arch: str) -> None:
    made, symbol = cubin(first(op, dtype), arch)
    assert instructions(made)[symbol] > 10
    assert struct.unpack_from("<I", made, 48)[0] >> 8 & 0xFF == int(arch[3:]), "e_flags of the ELF header name the architecture"
    registers, spilled, count = tileiras.report(first(op, dtype), arch).split(", ")
    assert (0 < int(registers.split()[0]) <= 255, int(count.split()[0])) == (True, instructions(made)[symbol])
    assert arch != "sm_90" or spilled == "0 bytes spilled", "the tiles were taken so that registers hold them there"


@needs_compiler
@pytest.mark.parametrize(("dtype", "unit"), [("float16", b"wgmma"), ("tfloat32", b".tf32.tf32"), ("float32", b"add.rn.f32|fma.rn.f32")])
def test_products_are_of_the_unit_that_the_dtype_asks_for(dtype: str, unit: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """With line information a cubin holds its PTX as well."""
    monkeypatch.setattr(tileiras, "FLAGS", (*tileiras.FLAGS, "--lineinfo"))
    made = tileiras._compiled(first("matmul", dtype), "sm_90")
    assert re.search(unit, made)
    assert (b"wgmma" in made) == (dtype != "float32"), "float32 is not rounded to TF32"
    assert bool(re.search(rb"add\.s32[^;]*, 4096;", made) and re.search(rb"and\.b32[^;]*, -8192;", made)) == (dtype == "tfloat32"), (
        "rounded"
    )


@needs_compiler
def test_what_tileiras_refuses_is_told(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWISE_CACHE_DIR", str(tmp_path))
    with pytest.raises(RuntimeError, match="tileiras refuses square for sm_75"):
        cubin(first("square", "float32"), "sm_75")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing of it is kept"


@pytest.mark.parametrize(("said", "reason"), [("release 13.2, V13.2.51", "is V13.2.51, and 13.4 is the least"), ("", "is broken")])
def test_an_old_compiler_is_refused(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, reason: str) -> None:
    fake = tmp_path / "tileiras"
    fake.write_text(f"#!/bin/sh\necho '{said}'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("OPWISE_TILEIRAS", str(fake))
    with pytest.raises(BackendUnavailable, match=reason) as caught:
        tileiras.tileiras()
    assert "OPWISE_TILEIRAS=PREFIX" in caught.value.remedy


def test_a_compiler_that_is_not_where_it_was_said_to_be(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWISE_TILEIRAS", str(tmp_path / "none"))
    with pytest.raises(BackendUnavailable, match="OPWISE_TILEIRAS="):
        tileiras.tileiras()


@needs_compiler
def test_cubins_made_ahead_need_no_compiler(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWISE_CACHE_DIR", str(tmp_path))
    here, specimen = cubin(first("square", "float16"), "sm_90"), first("square", "float16")
    (kept,) = (path for path in tmp_path.rglob("*.cubin"))
    for remembered in (tileiras.tileiras, cubin):
        remembered.cache_clear()
    monkeypatch.setenv("OPWISE_TILEIRAS", os.devnull)
    monkeypatch.setenv("OPWISE_CUTILE_CUBINS", str(kept.parents[1]))
    assert made_ahead() == kept.parents[1]
    assert cubin(specimen, "sm_90") == here
    assert tileiras.compiler_version() == f"{kept.parents[1].name}, ahead"
    with pytest.raises(BackendUnavailable, match=r"lacks sm_90/square.*python -m opwise_cutile sm_90"):
        cubin(first("square", "float32"), "sm_90")


@pytest.mark.parametrize(
    ("x", "array", "sizes"),
    [
        (torch.empty(6, 8), Array(torch.float32, 2), (6, 8, 8, 1)),
        (torch.empty(6, 9), Array(torch.float32, 2, aligned=False), (6, 9, 9, 1)),
        (torch.empty(6, 8).t(), Array(torch.float32, 2, transposed=True), (8, 6, 1, 8)),
        (torch.empty(64, dtype=torch.float16)[1:49].view(6, 8), Array(torch.float16, 2, aligned=False), (6, 8, 8, 1)),
        (torch.empty(3, 8)[:1], Array(torch.float32, 2), (1, 8, 8, 1)),
        (torch.empty(8, 1), Array(torch.float32, 2, aligned=False), (8, 1, 1, 1)),
    ],
)  # fmt: skip
def test_what_a_kernel_may_know_of_a_matrix(x: torch.Tensor, array: Array, sizes: tuple[int, ...]) -> None:
    if x.data_ptr() % 16 and array.aligned:
        pytest.skip("torch allocated this off 16 bytes")
    assert launching.matrix(x) == (array, sizes)


def test_what_32_bits_count_to() -> None:
    ends = (torch.empty(n, device="meta", dtype=torch.float16) for n in (2**31 - 2**16, 2**31 - 2**16 + 1))
    assert [launching.flat(x)[0].wide for x in ends] == [False, True]


@pytest.mark.parametrize("op", OPS)
def test_whatever_is_built_is_among_the_specimens(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all workloads that opwise names, in every variant: cubins made ahead leave nothing to compile."""
    module: Any = importlib.import_module(f"opwise_cutile.{op}")
    built: set[Specimen] = set()
    owner: Any = importlib.import_module("opwise_cutile.elementwise") if op in ("square", "gelu") else module
    monkeypatch.setattr(owner, "built", lambda specimen, *_, **__: built.add(specimen))
    monkeypatch.setattr(owner, "processors", lambda device: 132, raising=False)
    for workload in {w for group in OPS[op].workloads.values() for w in group}:
        with workload.precision():
            tensors = _like(workload, OPS[op])
            for variant in module.VARIANTS.values():
                variant.build(*tensors)
    assert built <= set(SPECIMENS[op])
    assert len(built) > len(module.VARIANTS)


def _like(workload: Any, spec: Any) -> list[torch.Tensor]:
    """Tensors without memory, as the workload's are laid out."""
    shapes = [workload.shape] if spec.name != "matmul" else [workload.shape[:2], workload.shape[1:]]
    ways = workload.layout or "N" * len(shapes)
    empty = partial(torch.empty, dtype=workload.torch_dtype, device="meta")
    inputs = [empty(shape) if way == "N" else empty(shape[::-1]).t() for shape, way in zip(shapes, ways, strict=True)]
    return [*inputs, spec.empty_output(*inputs)]


def test_a_launch_passes_address_sizes_and_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuda-tile's calling convention, and blocks of one thread; bound ahead or at once, twice in turn."""
    seen: list[list[int]] = []
    made: list[Any] = []

    def enqueuer(handle: int, grid: tuple[int, int], threads: int, *_: Any) -> Any:
        made.append((handle, grid, threads))
        return lambda at: seen.append(
            [ctypes.cast(p, ctypes.POINTER(ctypes.c_int64))[0] for p in (ctypes.c_void_p * 9).from_address(at.value)]
        )

    monkeypatch.setattr(launching, "arch_of", lambda device: "sm_90")
    monkeypatch.setattr(launching, "cubin", lambda specimen, arch: (b"", "f"))
    monkeypatch.setattr(launching, "loaded", lambda *_: 7)
    monkeypatch.setattr(launching, "enqueuer", enqueuer)
    x, out = torch.empty(6, 8).t(), torch.empty(5)
    sizes = launching.matrix(x)[1], launching.flat(out)[1]
    bound = launching.built(first("square", "float32"), 3, torch.device("cuda", 0), *sizes, numbers=(11,))
    expected = [x.data_ptr(), 8, 6, 1, 8, out.data_ptr(), 5, 1, 11]
    bound(x, out)()
    assert bound.run is not None
    bound.run(x, out)
    bound.run(x, torch.empty(0))
    assert seen == [expected, expected, [*expected[:5], 0, *expected[6:]]]
    assert made == [(7, (3, 1), 1)]
