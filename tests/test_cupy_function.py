"""What cupy_raw allows a kernel, on a GPU that is played here."""

from __future__ import annotations

import contextlib
import importlib
from types import SimpleNamespace

import pytest
import torch
from support import needs

from opwise.backends.cuda_src.plan import Plan

SHARED, WIDTH, WIDER = 8, 11, 14  # CU_FUNC_ATTRIBUTE_*
KERNEL = "any"


class Driver:
    """The attributes of one function, as cuFuncGetAttribute and cuFuncSetAttribute know them."""

    def __init__(self, width: int) -> None:
        self.attributes = {SHARED: 48 * 1024, WIDTH: width, WIDER: 0}

    def get(self, attribute: int, function: int) -> int:
        return self.attributes[attribute]

    def set(self, function: int, attribute: int, value: int) -> None:
        self.attributes[attribute] = value


def played(monkeypatch: pytest.MonkeyPatch, width: int) -> Driver:
    needs("cupy")
    function = importlib.import_module("opwise.backends.cupy_raw.function")
    driver, kernel = Driver(width), SimpleNamespace(kernel=SimpleNamespace(ptr=77))
    monkeypatch.setattr(function, "driver", SimpleNamespace(funcGetAttribute=driver.get, funcSetAttribute=driver.set))
    monkeypatch.setattr(function, "module", lambda name, arch: SimpleNamespace(get_function=lambda name: kernel))
    monkeypatch.setattr(function.cupy.cuda, "Device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    return driver


def test_a_plan_of_little_shared_memory_takes_none_from_another_of_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products that hold B and rows of softmax ask for as much as they need; a launch that was bound before must go on."""
    driver = played(monkeypatch, width=1)
    from opwise.backends.cupy_raw.function import loaded

    seen = []
    for kb in (0, 48, 200, 60, 20, 210):
        assert loaded(Plan(KERNEL, (1, 1, 1), (32, 1, 1), kb * 1024), 0).ptr == 77
        seen.append(driver.attributes[SHARED] // 1024)
    assert seen == [48, 48, 200, 200, 200, 210]
    assert not driver.attributes[WIDER]


@pytest.mark.parametrize(("width", "allowed"), [(8, 0), (16, 1)])
def test_a_cluster_of_more_than_eight_blocks_is_allowed(monkeypatch: pytest.MonkeyPatch, width: int, allowed: int) -> None:
    driver = played(monkeypatch, width)
    from opwise.backends.cupy_raw.function import loaded

    loaded(Plan(KERNEL, (16, 1, 1), (32, 1, 1)), 0)
    assert driver.attributes[WIDER] == allowed
