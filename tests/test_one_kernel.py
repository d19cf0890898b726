"""A kernel by itself, as CuPy compiles it, is the one that its unit has: by name for all units, by machine code for two."""

from __future__ import annotations

import importlib

import pytest
from compile_child import kernels_of
from support import or_skip

from opwise.backends.cubin import code
from opwise.backends.cuda_src.sources import alone, unit_of, units

WRITTEN_OUT = {"gelu": {"gelu_float32_textbook"}, "matmul_float32": {"matmul_textbook_float32"}}


def defined(unit: str, text: str) -> list[str]:
    with or_skip():
        return kernels_of(unit, text)


@pytest.mark.parametrize("unit", sorted(units("sm_90")))
def test_the_kernel_that_is_wanted_is_compiled_and_no_other(unit: str) -> None:
    text, always = units("sm_90")[unit], WRITTEN_OUT.get(unit, set())
    names = defined(unit, text)
    assert len(set(names)) == len(names) >= 2
    assert {unit_of(name) for name in names} == {unit}
    for name in (names[0], names[len(names) // 2], names[-1]):
        assert set(defined(unit, alone(name, text))) == {name} | always
    assert set(defined(unit, alone("nobody", text))) == always


@pytest.mark.parametrize("unit", ["gelu", "softmax_stream"])
def test_its_machine_code_is_the_same(unit: str) -> None:
    with or_skip(Exception, "no NVRTC through CuPy here"):
        module = importlib.import_module("opwise.backends.cupy_raw.module")
        module.nvrtc_version()
    whole = code(module.compile_unit(unit, "sm_90")[0])
    name = sorted(whole)[0]
    found = code(module.compile_kernel(name, "sm_90")[0])
    assert len(found) <= 2 < len(whole)
    assert found[name] == whole[name]
