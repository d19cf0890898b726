"""A user's own file: the examples are right, and whatever a file does costs its own rows only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from invoking import invoke
from support import ON_GPU, or_skip

import opwise
from opwise import own
from opwise.backends import BACKENDS
from opwise.backends.protocol import Variant
from opwise.ops.spec import Workload
from opwise.own import files, marking
from opwise.record import Record
from opwise.runner import Job, Patience, run_jobs
from opwise.runner.session import Session
from opwise.runner.survey import Survey, look

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("my_*.py"))  # the lectures beside them are scripts
SQUARE, SOFTMAX = Workload("square", (33,), "float32"), Workload("softmax", (3, 33), "float32")

GOOD = """
import torch, opwise

@opwise.kernel("square")
def right(x, out):
    torch.mul(x, x, out=out)

@opwise.kernel("square", variant="cubed", fault="cubes")
def wrong(x):
    return x * x * x

@opwise.kernel("square", variant="raises")
def raises(x, out):
    raise RuntimeError("boom [bold]not markup[/]")

@opwise.kernel("square", variant="refuses")
def refuses(x, out):
    raise opwise.UnsupportedWorkload("takes no tensors on Fridays")

@opwise.kernel("square", variant="returns")
def returns(x):
    return x.double()

@opwise.kernel("square", variant="forgot")
def forgot(x, out):
    return lambda x, out: None

@opwise.kernel("square", variant="abort")
def abort(x, out):
    import os
    os.abort()
"""
# Whatever happens when it is imported: in a worker, and what an import alone tells.
TORN = 'import opwise\n@opwise.kernel("square")\ndef f(x, out:\n'
ABORTING = 'import os\n# kernel("square")\nos.abort()\n'
BROKEN = {
    "raising": ("raise ValueError('no luck')\n", "ValueError: no luck"),
    "empty": ("# no kernel here\n", "holds no kernel"),
    "twice": (
        "import opwise\n@opwise.kernel('square')\ndef a(x, out): ...\n@opwise.kernel('square')\ndef b(x, out): ...\n",
        "a and b are both square",
    ),
    "lost": ("import opwise\n@opwise.kernel('sqare')\ndef a(x, out): ...\n", "'sqare'"),
}  # fmt: skip


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Record], int]:
    """One run of everything: the examples, a good file whose variants misbehave in every way, and two that cannot be imported."""
    folder = tmp_path_factory.mktemp("own")
    for name, text in {"mine": GOOD, "torn": TORN, "aborting": ABORTING}.items():
        (folder / f"{name}.py").write_text(text)
    files = [*EXAMPLES, *sorted(folder.glob("*.py"))]
    given = [text for path in files for text in ("--with", str(path))]
    filters = [str(SQUARE), str(SOFTMAX), "torch_eager", *(path.stem for path in files)]
    result = invoke("check", *filters, *given, "--device", "cpu", "--json")
    records = [Record.from_json(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert records, result.output
    return {r.implementation: r for r in records}, result.exit_code


@pytest.mark.slow
@pytest.mark.xdist_group("own")
def test_every_example_is_right_where_something_can_run_it_here(checked: tuple[dict[str, Record], int]) -> None:
    assert [path.stem for path in EXAMPLES] == ["my_cuda", "my_cupy", "my_numba", "my_torch", "my_triton"], "one a backend"
    found = {name: r for name, r in checked[0].items() if name.startswith("my_")}
    states = {name: (r.status, r.stand_in) for name, r in found.items()}
    for name, stand_in in {"my_torch/softmax": "cpu", "my_torch/softmax:out": "cpu", "my_triton/softmax": "interpreter",
                           "my_numba/square": "greenlets"}.items():  # fmt: skip
        if states[name] != ("unavailable", None):  # its library is not installed
            assert states[name] == ("ok", stand_in), found[name].reason
    for name in ("my_cuda/square", "my_cupy/softmax"):
        assert states[name] == ("unavailable", None), found[name].reason
        assert "run it on a machine with a GPU" in found[name].reason
    assert len(found) == 6
    digests = {r.source for r in found.values() if r.status == "ok"}
    assert "" not in digests, "a record says which file it is of"
    assert len(digests) == len({r.backend for r in found.values() if r.status == "ok"})


@pytest.mark.slow
@pytest.mark.skipif(not ON_GPU, reason="no GPU here: without one the examples in CUDA C++ are not run")
def test_every_example_is_right_on_a_gpu() -> None:
    given = [text for path in EXAMPLES for text in ("--with", str(path))]
    result = invoke("check", "square/10007/float32", "softmax/583x931/float32", *(path.stem for path in EXAMPLES), *given, "--json")
    records = [Record.from_json(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert {r.backend for r in records} == {path.stem for path in EXAMPLES}, result.output
    assert {(r.status, r.stand_in) for r in records} == {("ok", None)}, [r.reason for r in records]


@pytest.mark.slow
@pytest.mark.xdist_group("own")
def test_a_broken_file_costs_its_own_rows_only(checked: tuple[dict[str, Record], int]) -> None:
    records, status = checked
    assert {records[name].status for name in ("torch_eager/square", "torch_eager/softmax", "mine/square")} == {"ok"}
    wanted = {
        "mine/square:cubed": ("wrong", "known fault (cubes)"),
        "mine/square:raises": ("failed", "RuntimeError: boom [bold]not markup[/]"),
        "mine/square:refuses": ("unsupported", "Fridays"),
        "mine/square:returns": ("failed", "returned torch.float64"),
        "mine/square:forgot": ("failed", "build=True"),
        "mine/square:abort": ("failed", "SIGABRT"),
        "torn/square": ("failed", "SyntaxError"),
        "aborting/square": ("failed", "SIGABRT"),
    }
    assert {name for name in records if name.startswith(("mine", "torn", "aborting"))} == {"mine/square", *wanted}
    for name, (state, reason) in wanted.items():
        assert records[name].status == state, (name, records[name])
        assert reason in records[name].reason, (name, records[name])
    assert status == 1


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_with_a_file_is_told(tmp_path: Path, name: str) -> None:
    text, reason = BROKEN[name]
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        own.FileBackend(f"{files.MODULE}{name}", path).probe(torch.device("cpu"))
    assert reason in f"{caught.typename}: {caught.value}"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_cuda_example_compiles(tmp_path: Path, arch: str) -> None:
    from opwise.backends.torch_inline.toolchain import toolchain

    with or_skip():
        tools = toolchain()
    namespace: dict[str, str] = {}
    text = (ROOT / "examples" / "my_cuda.py").read_text()
    exec(text[text.index('CUDA = r"""') : text.index("@cache")], namespace)
    source = tmp_path / "square.cu"
    source.write_text(namespace["CUDA"])
    command = [str(tools.nvcc), "-cubin", *tools.nvcc_flags(arch), str(source), "-o", str(tmp_path / "square.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "square.cubin").read_bytes().startswith(b"\x7fELF")


def test_the_cupy_example_is_imported_and_compiles() -> None:
    code = "\n".join(
        [
            "try:",
            "    from cupy.cuda import nvrtc; nvrtc.getVersion()",
            "except Exception as error:",
            "    print('SKIP', error); raise SystemExit",
            "import my_cupy",
            "program = nvrtc.createProgram(my_cupy.SOURCE, 'softmax.cu', (), ())",
            "nvrtc.compileProgram(program, ('-arch=sm_90',))",
            "print('CUBIN', nvrtc.getCUBIN(program)[:4])",
        ]
    )
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "examples")])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False)
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("SKIP"):
        pytest.skip(f"NVRTC is not here: {done.stdout}")
    assert done.stdout.strip() == r"CUBIN b'\x7fELF'"


@pytest.mark.slow
@pytest.mark.xdist_group("own")
def test_a_file_that_hangs_costs_its_own_rows_only(tmp_path: Path) -> None:
    importing, launching = tmp_path / "importing.py", tmp_path / "launching.py"
    importing.write_text('import time  # kernel("square")\ntime.sleep(3600)\n')
    launching.write_text('import time, opwise\n@opwise.kernel("square")\ndef f(x, out): time.sleep(3600)\n')
    entry = look("cpu", "importing", importing, patience_s=2.0)
    found = Survey("cpu", {}, {"importing": entry}, own.named([importing]))
    session = Session.planned(found, [str(SQUARE)], "smoke", variants=False, timed=False, out=None)
    (record,) = (r for event in session.events() for r in event.records)
    assert (record.implementation, record.status) == ("importing/square", "timeout")
    assert "no sign of life for 2 s" in record.reason
    jobs = [Job(Workload("square", (n,), "float32"), ("launching/square", "torch_eager/square"), "cpu", timed=False) for n in (1, 2, 3)]
    setup = own.setup(own.named([launching]))
    records = [r for e in run_jobs(jobs, "cpu", setup=setup, patience=Patience(20.0, 2.0)) for r in e.records]
    assert [r.status for r in records if r.backend == "torch_eager"] == ["ok"] * 3
    hung = [r for r in records if r.backend == "launching"]
    assert [r.status for r in hung] == ["timeout"] * 3
    assert ["not tried again" in r.reason for r in hung] == [False, False, True], "what hangs everywhere must end"


def test_the_decorator_leaves_the_function_as_it_is() -> None:
    @opwise.kernel("square")
    @opwise.kernel("square", variant="again", summary="the same")
    def squared(x: torch.Tensor) -> torch.Tensor:
        """x * x.

        Two lines.
        """
        return x * x

    assert squared(torch.tensor(3.0)) == 9
    kept = getattr(squared, marking.MARK)
    assert [(k.op, k.variant, k.source.summary) for k in kept] == [("square", "again", "the same"), ("square", "", "x * x.")]
    assert all(isinstance(k.source, Variant) and k.source.call is squared for k in kept)


def test_the_decorator_refuses_what_it_cannot_take() -> None:
    with pytest.raises(ValueError, match="unknown op: known are square"):
        opwise.kernel("relu")
    with pytest.raises(TypeError, match="no parameter `out`"):
        opwise.kernel("square", build=True)(lambda x: x)


@pytest.mark.parametrize(
    ("name", "needle"),
    [("triton_jit.py", "opwise.backends.triton_jit"), ("my-kernel.py", "rename it"), ("kernel.txt", "no Python file"), (None, "not there"),
     ("folder.py/", "no Python file")],
)  # fmt: skip
def test_a_file_that_cannot_be_a_backend_is_refused(tmp_path: Path, name: str | None, needle: str) -> None:
    path = tmp_path / (name or "nothing.py")
    if name and name.endswith("/"):
        path.mkdir()
    elif name:
        path.write_text(GOOD)
    result = invoke("run", "square", "--with", str(path))
    assert result.exit_code == 2, result.output
    assert needle in result.output.replace("\n", "")
    assert "Traceback" not in result.output


def test_two_files_of_one_name_are_refused_by_both_their_names(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    paths = [tmp_path / "mine.py", tmp_path / "a" / "mine.py"]
    for path in paths:
        path.write_text(GOOD)
    with pytest.raises(own.BadFile) as caught:
        own.named(paths)
    assert all(str(path) in str(caught.value) for path in paths)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import triton.language as tl", ["triton_jit"]),
        ("def f():\n    from numba import cuda\nimport cupy", ["numba_cuda", "cupy_raw"]),
        ("from torch.utils.cpp_extension import load_inline", ["torch_inline"]),
        ("from torch.utils import cpp_extension", ["torch_inline"]),
        ("import torch, tritonish\nfrom . import triton", []),
        ("# -*- coding: latin-1 -*-\n# caf\u00e9\nimport triton", ["triton_jit"]),
        ("import (", []),
    ],
)
def test_the_libraries_of_a_file_are_known_without_running_it(tmp_path: Path, source: str, expected: list[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source, encoding="latin-1")  # in which ASCII is what it is
    assert own.libraries(path) == expected
    assert set(expected) <= set(BACKENDS)


def test_a_process_that_a_file_forks_when_it_is_imported_ends_there(tmp_path: Path) -> None:
    """Also where the import breaks in it. Its parent alone goes on with the command."""
    path, here = tmp_path / "forking.py", os.getpid()
    path.write_text(GOOD + "import os\nchild = os.fork()\nif not child:\n    raise ValueError('in the child')\n")
    try:
        own.FileBackend(f"{files.MODULE}forking", path).probe(torch.device("cpu"))
    finally:
        if os.getpid() != here:
            os._exit(1)
    child = sys.modules[f"{files.MODULE}file_forking"].child
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
