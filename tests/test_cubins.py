"""Numba's cubins on disk: a key is a kernel's, another kernel has another, and what is taken from disk is what was left there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import needs

from opwise.backends.numba_cuda.common import cubins

ROOT = Path(__file__).resolve().parents[1]

KEYS = """
import importlib, json, sys
from opwise.backends import numba_cuda
from opwise.ops import OPS
numba_cuda._import_numba()
cubins = importlib.import_module("opwise.backends.numba_cuda.common.cubins")
kernels = lambda op: importlib.import_module(f"opwise.backends.numba_cuda.{op}").kernels()
if sys.argv[1:]:
    next(iter(kernels("square").values())).ptx("sm_90")
found = {f"{op} {name}": (kernel, cubins.place(kernel, "sm_90")) for op in OPS for name, kernel in kernels(op).items()}
told = {"places": {name: str(path) for name, (_, path) in found.items()}}
"""
REAL = (
    KEYS
    + """
kernel, path = found["square float32 vector"]
first = kernel.assemble("sm_90")
written = path.is_file()
kernel._cubins.clear()
kernel.ptx = None  # whoever compiles now fails
told |= {
    "kernels": len({id(kernel) for kernel, _ in found.values()}),
    "other": cubins.place(kernel, "sm_80") == path,
    "written": written,
    "same": kernel.assemble("sm_90") == first,
    "key": path.name,
}
"""
)


def told_by(program: str, cache: Path, *arguments: str, hash_seed: str = "1") -> Any:
    """What a process of its own prints, as JSON."""
    needs("numba.cuda")
    around = os.environ | {
        "OPWISE_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT / "src"), "PYTHONHASHSEED": hash_seed,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nprint(json.dumps(told))", *arguments],
        env=around,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_every_kernel_has_a_key_of_its_own_which_leads_to_its_cubin_and_is_the_same_in_any_process(tmp_path: Path) -> None:
    """A first process compiles one kernel. A second one compiles it before it imports the next op."""
    told = told_by(REAL, tmp_path)
    assert "None" not in told["places"].values()
    assert len(set(told["places"].values())) == told["kernels"] > 50
    assert (told["other"], told["written"], told["same"]) == (False, True, True)
    assert [path.name for path in (tmp_path / "numba").iterdir()] == [told["key"]]
    assert told_by(KEYS, tmp_path, "compile", hash_seed="2")["places"] == told["places"]


@dataclass
class FakeKernel:
    """What `cubins` reads of a kernel."""

    function: Any
    parameters: tuple[Any, ...] = ()
    threads: int = 128
    min_blocks: int = 1
    maps: int = 0
    only: str | None = None
    cluster: int = 1


def made(constant: Any, scale: Any = 1) -> Any:
    def kernel(x: Any) -> Any:
        return x + constant * scale

    return kernel


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPWISE_CACHE_DIR", str(tmp_path))
    return tmp_path / "numba"


def test_what_a_closure_holds_is_in_its_key(store: Path) -> None:
    def place(*held: Any, **options: Any) -> Path | None:
        return cubins.place(FakeKernel(made(*held), **options), "sm_90")

    same = place(1.0)
    assert same == place(1.0)
    others = [place(*held) for held in ((2.0,), (1,), (True,), ("1.0",), (1.0, made(1)), (1.0, made(2)), ((1.0,),))]
    others += [place(1.0, threads=64), place(1.0, maps=1), place(1.0, only="sm_90"), place(1.0, cluster=2)]
    assert None not in others
    assert len({same, *others}) == len(others) + 1
    assert place(object()) is None, "what cannot be told is compiled by everybody"


def test_a_damaged_file_is_compiled_anew(store: Path) -> None:
    compiled: list[str] = []

    def assemble() -> tuple[bytes, str]:
        compiled.append("once more")
        return b"\x7fELF and\nthe rest", "entry"

    def taken() -> tuple[bytes, str]:
        return cubins.kept_or(assemble, FakeKernel(made(1)), "sm_90")

    assert taken() == taken() == (b"\x7fELF and\nthe rest", "entry")
    assert len(compiled) == 1
    (path,) = store.iterdir()
    path.write_bytes(b"entry\nrubbish")
    assert taken() == taken() == (b"\x7fELF and\nthe rest", "entry")
    assert len(compiled) == 2
    assert path.read_bytes() == b"entry\n\x7fELF and\nthe rest"


SCALE = 2


def test_globals_that_a_kernel_names_are_in_its_key(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(x: Any) -> Any:
        return x * SCALE

    def of_a_module(x: Any) -> Any:
        return x + len(cubins.OPTIONS)

    def key(of: Any) -> Path | None:
        of.__module__ = "opwise.backends.somebody"  # whose globals are told: other packages are told by their versions
        return cubins.place(FakeKernel(of), "sm_90")

    before = key(scaled), key(of_a_module)
    assert before == (key(scaled), key(of_a_module))
    monkeypatch.setitem(globals(), "SCALE", 3)
    monkeypatch.setattr(cubins, "OPTIONS", ())
    after = key(scaled), key(of_a_module)
    assert None not in (*before, *after)
    assert before[0] != after[0]
    assert before[1] != after[1]
