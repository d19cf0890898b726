"""Importing opwise imports no GPU library, and using one backend imports no other's; what a command begins before it imports anything.
Each case is a process of its own, forked from one that has imported torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from support import needs

from opwise.backends import BACKENDS
from opwise.early import commanded, scheduler
from opwise.ops import OPS

LIBRARIES = ("cupy", "numba", "triton")
SOURCE = Path(__file__).resolve().parents[1] / "src"
INSTRUMENTS = ", ".join(f"opwise.measure.{name}" for name in ("device", "limits", "timing", "validate"))
# The GPU libraries that are loaded after each step of a case. Those of torch are not ours to keep out.
FORKED = """
import json, os, sys, traceback, torch
cases = json.load(sys.stdin)
for name, steps in cases.items():
    if os.fork():
        os.wait()
        continue
    seen, found = {}, []
    try:
        for step in ("pass", *steps):
            exec(step, seen)
            found.append(sorted({"cupy", "numba", "triton", "pynvml"} & set(sys.modules)))
    except BaseException:
        found = traceback.format_exc()
    print(json.dumps({name: found}), flush=True)
    os._exit(0)
"""
PROBED = """
from opwise.backends import implementations
from opwise.backends.protocol import BackendUnavailable
try:
    found = [implementations({backend!r}, op, 'cpu') for op in {ops!r}]
    assert any(found)
except BackendUnavailable as problem:
    assert problem.reason and problem.remedy
"""
MISSING = """
import sys, torch
for name in {libraries!r}:
    sys.modules[name] = None  # importing it raises ImportError
from opwise.backends import BACKENDS, implementations, probe
from opwise.backends.protocol import BackendUnavailable
works = []
for backend in BACKENDS:
    try:
        probe(backend, torch.device('cpu'))
        works.append(backend)
    except BackendUnavailable as problem:
        assert problem.reason and problem.remedy, backend
assert 'torch_eager' in works, works
x = torch.ones(3)
assert torch.equal(implementations('torch_eager', 'square', 'cpu')[''](x), x)
[sys.modules.pop(name) for name in {libraries!r}]
"""
UNTOUCHED = """
import gc, torch
from multiprocessing import forkserver
assert gc.isenabled() and forkserver._forkserver._forkserver_pid is None
assert not torch.cuda.is_initialized()
"""
NUMPY_2_5 = """
import numpy
if hasattr(numpy, 'row_stack'):
    del numpy.row_stack
from opwise.backends.numba_cuda import _import_numba
from opwise.backends.protocol import BackendUnavailable
try:
    _import_numba()
    from numba import cuda, types
    assert cuda.compile_ptx(lambda x: None, (types.float32[:],))
except BackendUnavailable as problem:
    assert 'row_stack' in problem.reason and 'numpy<2.5' in problem.remedy, problem
"""
OF_TRITON = "; ".join(f"import opwise.backends.triton_jit.{op}" for op in OPS)
CASES = {backend: (f"import {module}", PROBED.format(backend=backend, ops=tuple(OPS))) for backend, module in BACKENDS.items()} | {
    "opwise": (f"import opwise, {INSTRUMENTS}" + UNTOUCHED,),
    "numpy 2.5": (NUMPY_2_5,),
    "missing": (MISSING.format(libraries=LIBRARIES),),
    "gluon": (f"{OF_TRITON}; import sys; assert 'triton' in sys.modules and 'triton.experimental.gluon' not in sys.modules",),
}
together = pytest.mark.xdist_group("lazy")


@cache
def told() -> dict[str, list[list[str]] | str]:
    """Of each case what was loaded after each step, without a GPU, or the error."""
    clean = {k: v for k, v in os.environ.items() if k not in {"TRITON_INTERPRET", "PYTHONPATH"}}
    clean |= {"PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", FORKED]
    done = subprocess.run(command, input=json.dumps(CASES), capture_output=True, text=True, timeout=120, env=clean, check=False)
    assert done.returncode == 0, done.stderr
    return {name: found for line in done.stdout.splitlines() if line.startswith("{") for name, found in json.loads(line).items()}


def loaded_by(case: str) -> list[set[str]]:
    """The libraries that each step adds."""
    found = told()[case]
    assert not isinstance(found, str), found
    return [set(after) - set(before) for before, after in pairwise(found)]


@together
def test_opwise_imports_no_gpu_library_touches_no_cuda_and_begins_no_process() -> None:
    assert loaded_by("opwise") == [set()]


@pytest.mark.parametrize(("command", "early"), [("run", "True False"), ("show", "False True")])
def test_a_command_begins_what_workers_are_forked_from_before_it_imports_torch(tmp_path: Path, command: str, early: str) -> None:
    """And collects no garbage meanwhile. A torch that tells, in this process and in the one that was begun, stands for the real one."""
    tells = "import gc; from multiprocessing import forkserver as f; print(f._forkserver._forkserver_pid is not None, gc.isenabled())"
    (tmp_path / "torch.py").write_text(f"{tells}\nraise SystemExit")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"}
    words = [sys.executable, "-m", "opwise", command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert set(done.stdout.split("\n")) == ({early, "False False", ""} if command == "run" else {early, ""}), done.stderr


@pytest.mark.parametrize(
    ("argv", "original", "command"),
    [
        (["-m", "run", "--gpus", "all"], ["python3", "-X", "utf8", "-m", "opwise", "run", "--gpus", "all"], "run"),
        (["/usr/bin/opwise", "bars"], ["python3", "/usr/bin/opwise", "bars"], "bars"),
        (["/usr/bin/opwise"], ["python3", "/usr/bin/opwise"], ""),
        (["-m", "run"], ["python3", "-m", "another", "run"], ""),
        (["train.py", "run"], ["python3", "train.py", "run"], ""),
    ],
)
def test_which_process_is_a_command(argv: list[str], original: list[str], command: str) -> None:
    assert commanded(argv, original) == command


@together
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_imports_its_library_in_probe_and_no_other(backend: str) -> None:
    by_import, by_probe = loaded_by(backend)
    assert not by_import
    assert len(by_probe) <= 1


@together
def test_a_missing_library_is_a_reason_and_a_remedy() -> None:
    """Where a library is not installed its backend says so and the others work."""
    assert loaded_by("missing") == [set()]


def test_a_clusters_workers_are_told_to_begin_theirs_and_this_process_begins_none(tmp_path: Path) -> None:
    """Before torch is imported here; a scheduler that is not there is for the command to tell."""
    tells = "import sys; from multiprocessing import forkserver as f; print(f._forkserver._forkserver_pid, 'distributed' in sys.modules)"
    (tmp_path / "torch.py").write_text(f"{tells}\nraise SystemExit")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"}
    words = [sys.executable, "-m", "opwise", "run", "--scheduler", str(tmp_path / "none.json")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert (done.stdout, done.stderr) == ("None True\n", "")


@pytest.mark.parametrize(
    ("argv", "address"),
    [
        (["opwise", "run", "--scheduler", "tcp://head:8786"], "tcp://head:8786"),
        (["opwise", "run", "--scheduler=x.json", "--brief"], "x.json"),
        (["opwise", "run", "--scheduler"], ""),
        (["opwise", "run", "--gpus", "all"], ""),
    ],
)
def test_which_scheduler_a_command_names(argv: list[str], address: str) -> None:
    assert scheduler(argv) == address


@together
def test_what_can_be_imported_and_compiles_nothing_is_unavailable() -> None:
    """numba-cuda 0.30 beside numpy 2.5, which lacks what this numpy has deprecated."""
    needs("numba_cuda")
    assert loaded_by("numpy 2.5") == [{"numba"}]


@together
def test_gluon_is_imported_with_the_first_kernel_that_is_written_in_it() -> None:
    """Half of what Triton's ops would import, and short rows and small products want none of it."""
    needs("triton")
    assert loaded_by("gluon") == [{"triton"}]
