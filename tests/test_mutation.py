"""The mutation tests, tested: the catalogue fits today's sources, a few mutants of each backend are noticed, and so is what is no mutant.

All of them: scripts/mutate.py.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import support
from mutation import faults, trial
from mutation.campaign import Verdict, as_json, campaign, differences, verdict_of
from mutation.catalogue import FAULTS, MUTANTS
from mutation.faults import KINDS, Fault, Mutant, Stale, matching
from support import BACKENDS, ON_GPU

from opwise.backends.cuda_on_cpu import build, suite
from opwise.ops import OPS

ROOT = Path(__file__).resolve().parents[1]
LEAST = 15  # faults of each backend
# One or two of each backend, quick to run; of CUDA C++ one in a kernel, and one in the host code.
A_FEW = {
    "torch_eager": ("softmax columns for rows",),
    "torch_inline": ("square the tail is written without end",),
    "cupy_raw": ("square the last block is not launched",),
    "numba_cuda": ("square the elements after the last vector are written", "mean:plain half of the threads"),
    "triton_jit": ("mean programs of one step begin a step late",),
}


def test_every_backend_has_faults_of_every_op() -> None:
    assert set(FAULTS) == set(BACKENDS), "a backend adds a file to tests/mutation/catalogue"
    for backend, planted in FAULTS.items():
        counted = [fault for fault in planted if not fault.survives]
        assert len(counted) >= LEAST, backend
        assert {fault.op for fault in counted} == set(OPS), backend


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_fault_fits_todays_sources(mutant: Mutant) -> None:
    """The text to replace is there exactly once: a fault whose kernel has changed must change with it."""
    fault = mutant.fault
    text = fault.source()
    assert text != (faults.PACKAGE / fault.file).read_text(encoding="utf-8")
    assert fault.kind in KINDS
    assert set(fault.dtypes) <= set(OPS[fault.op].dtypes)
    assert fault.kind != "barrier" or fault.survives, "a race is left to compute-sanitizer: say so"
    if fault.file.endswith(".py"):
        compile(text, fault.file, "exec")


def test_names_tell_mutants_apart() -> None:
    assert len({str(m) for m in MUTANTS}) == len(MUTANTS)


def few() -> list[Mutant]:
    return [m for m in MUTANTS if any(str(m).startswith(f"{m.backend}/{name}") for name in A_FEW[m.backend])]


def test_a_few_are_of_every_backend() -> None:
    assert set(A_FEW) == set(BACKENDS)
    assert len(few()) == sum(map(len, A_FEW.values()))


def with_runtime(extensions: Path) -> None:
    """The stand-in's runtime, which no fault is in, is the suite's own there: it takes a compiler longer than all the rest."""
    folder = build._runtime(suite.BINDING).folder
    extensions.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (extensions / folder.name).symlink_to(folder)


@pytest.mark.parametrize("mutant", few(), ids=str)
def test_a_few_mutants_are_noticed(mutant: Mutant, tmp_path_factory: pytest.TempPathFactory) -> None:
    with support.or_skip(of=mutant.backend):
        support.stand_in(mutant.backend)
    if mutant.fault.gpu_only and not ON_GPU:
        pytest.skip(mutant.fault.gpu_only)
    compiled = tmp_path_factory.getbasetemp().parent / "compiled-mutants"  # shared by xdist's workers
    if not ON_GPU and "cuda_src" in mutant.fault.file:
        with_runtime(compiled / "TORCH_EXTENSIONS_DIR")
    verdict = verdict_of(mutant, 250, compiled)
    assert verdict.noticed, verdict


def test_a_trial_compiles_the_kernels_that_the_suite_runs() -> None:
    """A unit left out is an error of each launch from it, and makes all of the op's mutants void."""
    units = trial._wanted(suite.UNITS, "matmul", ["float16"])
    assert {"matmul_float16", "matmul_transposed_float16"} <= units.keys()
    assert "matmul_float32" not in units


def planted(name: str, old: str, new: str, variant: str = "pow") -> Mutant:
    return Mutant("torch_eager", Fault(name, "square", "constant", "backends/torch_eager/square.py", old, new, variant))


def test_what_is_no_fault_survives_and_nonsense_is_told_apart(tmp_path: Path) -> None:
    same = verdict_of(planted("the same", "return x**2", "return x * x"), 250, tmp_path)
    assert (same.verdict, same.noticed) == ("survived", False)
    nonsense = verdict_of(planted("no name", "torch.pow(x, 2, out=out)", "torch.pow(x, too, out=out)"), 250, tmp_path)
    assert (nonsense.verdict, nonsense.noticed) == ("nonsense", False)
    assert "too" in nonsense.reason


def test_a_crash_and_a_hang_are_noticed(tmp_path: Path) -> None:
    crash = planted("dies", "torch.pow(x, 2, out=out)", "__import__('os').abort()")
    hang = planted("hangs", "torch.pow(x, 2, out=out)", "__import__('time').sleep(1000)")
    assert verdict_of(crash, 250, tmp_path).verdict == "crashed"
    assert verdict_of(hang, 5, tmp_path).verdict == "hung"


def test_sources_that_do_not_pass_make_their_mutants_void(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A suite that fails whatever it is given would notice every fault."""
    broken = planted("broken before", "torch.pow(x, 2, out=out)", "torch.pow(x, 5, out=out)")
    copy = faults.copied(tmp_path, broken.fault) / "opwise"
    monkeypatch.setattr(faults, "PACKAGE", copy)
    monkeypatch.setattr(Fault, "source", lambda self, package=copy: (package / self.file).read_text().replace(self.old, self.new))
    told: list[Verdict] = []
    (verdict,) = campaign(
        [planted("then another", "return x**2", "return x**3")], on_gpu=ON_GPU, jobs=1, timeout_s=250, control=True, tell=told.append
    )
    assert verdict.verdict == "void"
    assert told == [verdict]


def test_a_stale_fault_says_where_it_was_to_go() -> None:
    with pytest.raises(Stale, match=r"square 'gone': backends/torch_eager/square.py holds the text to replace 0 times.*no such text"):
        planted("gone", "no such text", "").fault.source()
    with pytest.raises(Stale, match="holds the text to replace [2-9]"):
        planted("twice", "import", "").fault.source()


def test_verdicts_of_two_machines_are_compared(tmp_path: Path) -> None:
    def verdict(name: str, word: str) -> Verdict:
        return Verdict(name, "triton_jit", "square", "mask", word)

    there = tmp_path / "gpu.json"
    there.write_text(as_json([verdict(*v) for v in (("a", "killed"), ("b", "hung"), ("c", "killed"), ("d", "absent"))], "a GPU"))
    here = [verdict(*v) for v in (("a", "survived"), ("b", "crashed"), ("d", "survived"), ("e", "killed"))]
    assert differences(here, there) == ["a: survived here, killed on a GPU"]
    assert json.loads(there.read_text())["where"] == "a GPU"


def test_the_command_lists_and_refuses() -> None:
    def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "scripts/mutate.py", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)

    listed = ran("triton_jit", "-k", "softmax", "--list")
    assert listed.returncode == 0
    assert len(matching(MUTANTS, "triton_jit", "softmax")) == sum(
        line.startswith("triton_jit/softmax") for line in listed.stdout.splitlines()
    )
    assert ran("triton_jit", "-k", "no such name").returncode == 2
    assert ran("--help").stdout.count("python scripts/mutate.py") >= 4
