"""Importing opwise imports no GPU library, and using one backend imports no other's; what a command begins before it imports anything.
Each case is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from opwise.backends import BACKENDS
from opwise.early import commanded, scheduler
from opwise.ops import OPS

LIBRARIES = ("cupy", "numba", "triton")
SOURCE = Path(__file__).resolve().parents[1] / "src"
TELL = f"; import sys; print('LOADED', *sorted(set({LIBRARIES!r}) & set(sys.modules)))"


def loaded_by(*steps: str) -> list[set[str]]:
    """The GPU libraries that each step of code, one after the other in a fresh interpreter without a GPU, adds to sys.modules.

    Those of torch, which is imported first, are not ours to keep out.
    """
    clean = {k: v for k, v in os.environ.items() if k not in {"TRITON_INTERPRET", "NUMBA_ENABLE_CUDASIM", "PYTHONPATH"}}
    clean |= {"PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": ""}
    code = "\n".join(step + TELL for step in ("import torch", *steps))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=clean, check=False)
    assert done.returncode == 0, done.stderr
    loaded = [set(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("LOADED")]
    return [after - before for before, after in pairwise(loaded)]


def test_opwise_imports_no_gpu_library_touches_no_cuda_and_begins_no_process() -> None:
    begun = "; import gc; from multiprocessing import forkserver as f; assert gc.isenabled() and f._forkserver._forkserver_pid is None"
    untouched = "; assert not torch.cuda.is_initialized()"
    assert loaded_by("import opwise, opwise.measure.validate" + begun + untouched) == [set()]


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


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_imports_its_library_in_probe_and_no_other(backend: str) -> None:
    code = "\n".join(
        [
            "from opwise.backends import implementations",
            "from opwise.backends.protocol import BackendUnavailable",
            "try:",
            f"    found = [implementations({backend!r}, op, 'cpu') for op in {tuple(OPS)!r}]",
            "    assert any(found)",
            "except BackendUnavailable as problem:",
            "    assert problem.reason and problem.remedy",
            "pass",
        ]
    )
    by_import, by_probe = loaded_by(f"import importlib; importlib.import_module({BACKENDS[backend]!r})", code)
    assert not by_import
    assert len(by_probe) <= 1


def test_a_missing_library_is_a_reason_and_a_remedy() -> None:
    """Where a library is not installed its backend says so and the others work."""
    code = "\n".join(
        [
            "import sys",
            f"for name in {LIBRARIES!r}:",
            "    sys.modules[name] = None",  # importing it raises ImportError
            "from opwise.backends import BACKENDS, implementations, probe",
            "from opwise.backends.protocol import BackendUnavailable",
            "works = []",
            "for backend in BACKENDS:",
            "    try:",
            "        probe(backend, torch.device('cpu'))",
            "        works.append(backend)",
            "    except BackendUnavailable as problem:",
            "        assert problem.reason and problem.remedy, backend",
            "assert 'torch_eager' in works, works",
            "x = torch.ones(3)",
            "assert torch.equal(implementations('torch_eager', 'square', 'cpu')[''](x), x)",
            f"[sys.modules.pop(name) for name in {LIBRARIES!r}]",
        ]
    )
    assert loaded_by(code) == [set()]


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


def test_gluon_is_imported_with_the_first_kernel_that_is_written_in_it() -> None:
    """Half of what Triton's ops would import, and short rows and small products want none of it."""
    pytest.importorskip("triton")
    ops = "; ".join(f"import opwise.backends.triton_jit.{op}" for op in OPS)
    (added,) = loaded_by(f"{ops}; import sys; assert 'triton' in sys.modules and 'triton.experimental.gluon' not in sys.modules")
    assert added <= {"triton"}
