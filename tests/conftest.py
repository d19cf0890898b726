"""One process runs every backend: on the GPU where there is one, else torch on the CPU beside the stand-ins of the others.

Which of the two a library runs with is settled at its first import, by `probe`; nothing here may import one before. Tests that are
parametrised by `candidate` take it from the tables OPS and BACKENDS, so that a new op or backend brings its own tests.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator

import pytest
import support
import torch
from browser import chromium

from opwise.choosing import selection

__all__ = ["chromium"]
# Warnings of libraries about themselves, which `filterwarnings = error` would turn into failures of ours.
LIBRARY_WARNINGS = (
    r"ignore:`torch\.jit\..*` is deprecated:DeprecationWarning",  # torch.compile uses torch.jit inside
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: more than about five seconds; leave out with -m 'not slow'")
    config.addinivalue_line("markers", "huge: more than 2^31 elements; leave out with -m 'not huge'")
    for ignored in LIBRARY_WARNINGS:
        config.addinivalue_line("filterwarnings", ignored)
    os.environ["OPWISE_TUNED"] = "off"  # what is tested is what ships; tests of tuned tables bring their own
    os.environ.setdefault("OPWISE_SHARE", "1")  # on a GPU several workers of xdist test at once, and a run would refuse its neighbours
    logging.getLogger("torch.__trace").propagate = False  # thousands of structured lines under each failure
    if not support.ON_GPU:
        torch.set_num_threads(1)  # the tensors are small, and xdist's workers share the cores


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """torch.compile takes a process some ten seconds before its first kernel: one process is enough."""
    for item in items:
        candidate = item.callspec.params.get("candidate") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
        if getattr(candidate, "variant", "") in support.SLOW_VARIANTS:
            item.add_marker(pytest.mark.xdist_group("torch compile"))


def pytest_collection_finish() -> None:
    """What the libraries and the collected tests are made of stays to the end: no collection need look at it again, which takes 0.5 s."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    where = torch.cuda.get_device_name() if support.ON_GPU else "CPU"
    states = []
    for backend in support.BACKENDS:
        try:
            states.append(f"{backend} ({support.stand_in(backend) or 'GPU'})")
        except Exception as problem:  # a broken backend fails its own tests; the header only tells
            states.append(f"{backend} ({type(problem).__name__})")
    return f"opwise on {where}: {', '.join(states)}"


@pytest.fixture(autouse=True)
def _highest_precision() -> Iterator[None]:
    """Every test begins with float32 products in float32, and must leave the switch as it found it."""
    torch.set_float32_matmul_precision("highest")
    yield
    assert torch.get_float32_matmul_precision() == "highest", "the test left torch's float32 matmul precision changed"


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing is chosen for any call yet."""
    selection.forget()
    yield
    selection.forget()


@pytest.fixture
def roomy() -> Iterator[None]:
    """Gives cached truths and torch's cached blocks back before and after a test that needs most of the GPU's memory."""
    support.truth.cache_clear()
    gc.collect()
    torch.cuda.empty_cache()
    yield
    gc.collect()
    torch.cuda.empty_cache()
