"""The gate's one decision: is a figure worse, by more than is allowed and by more than chance?"""

from __future__ import annotations

import fcntl
import importlib
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from script_modules import script
from small_history import SmallHistory
from support import needs

from opwise.ops import OPS

needs("asv")

ROOT = Path(__file__).resolve().parents[1]
compute_stats = importlib.import_module("asv_runner.statistics").compute_stats
summary = script("gate_summary")  # first: the others import it by that name
verdict = script("gate_verdict")


@pytest.fixture(scope="module")
def gate() -> ModuleType:
    return verdict


def measured(gate: ModuleType, median: float, noise: float, seed: int, samples: int = 32) -> Any:
    drawn = (median * (1 + noise * np.random.default_rng(seed).standard_normal(samples))).tolist()
    value, stats = compute_stats(drawn, 1)
    return gate.Figure(value, stats, drawn)


def thresholds() -> dict[str, float]:
    text = re.sub(r"^\s*//.*$", "", (ROOT / "asv.conf.json").read_text(), flags=re.MULTILINE)
    return dict(json.loads(text)["regressions_thresholds"])


def test_a_planted_five_percent_is_found_and_the_same_again_is_not(gate: ModuleType) -> None:
    share = gate.threshold("softmax.Softmax.track_kernel_cold('triton_jit', '4096x4096', 'float16')", thresholds())
    assert share < 0.05
    verdicts = [gate.change(measured(gate, 20e-6, 0.003, 2 * s), measured(gate, 20e-6, 0.003, 2 * s + 1), share) for s in range(100)]
    assert verdicts == [""] * 100
    slower = [gate.change(measured(gate, 20e-6, 0.003, 2 * s), measured(gate, 21e-6, 0.003, 2 * s + 1), share) for s in range(100)]
    assert slower == ["worse"] * 100
    assert gate.change(measured(gate, 21e-6, 0.003, 0), measured(gate, 20e-6, 0.003, 1), share) == "better"


def test_scatter_alone_is_no_regression(gate: ModuleType) -> None:
    """Medians a few percent apart of samples that scatter by a third: chance."""
    verdicts = [gate.change(measured(gate, 10e-6, 0.3, 2 * s, 16), measured(gate, 10e-6, 0.3, 2 * s + 1, 16), 0.03) for s in range(100)]
    assert verdicts.count("worse") <= 1


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (0, 64, "worse"), (64, 64, ""), (64, 0, "better"), (0, 0, ""), (20, 21, ""), (20, 23, "worse"),
        (None, 20, "works now"), (20, None, "fails now"), (None, None, ""), (math.nan, 20, ""), (20, math.nan, ""), (None, math.nan, ""),
    ],
)  # fmt: skip
def test_counts_failures_and_what_is_lacking(gate: ModuleType, before: float | None, after: float | None, said: str) -> None:
    assert gate.change(gate.Figure(before), gate.Figure(after), 0.1) == said


def test_every_judged_figure_has_a_threshold_of_its_own(gate: ModuleType) -> None:
    tables = thresholds()
    kinds = re.findall(r"\w+", re.search(r"\((.*)\)", gate.JUDGED)[1])  # type: ignore[index]
    for kind in kinds:
        assert any(re.match(pattern, f"{next(iter(OPS))}.X.track_{kind}('a', 'b')") for pattern in tables), kind
    assert gate.threshold("nothing.that.fits", tables) == 0.05


def test_what_moves_eager_as_well_is_the_machine(gate: ModuleType) -> None:
    """Everything takes 7 % longer, and one kernel 5 % more than that."""
    eager, slower, same = (
        f"softmax.Softmax.track_kernel_cold('{b}', '4096x4096', 'float16')" for b in ("torch_eager", "triton_jit", "cupy_raw")
    )
    spills = "softmax.Compiled.track_spill_bytes('triton_jit', 'float16', 'sm_90')"
    before = {eager: measured(gate, 55e-6, 0.002, 1), slower: measured(gate, 18e-6, 0.002, 2), same: measured(gate, 18e-6, 0.002, 3)}
    after = {
        eager: measured(gate, 58.85e-6, 0.002, 4),
        slower: measured(gate, 20.22e-6, 0.002, 5),
        same: measured(gate, 19.26e-6, 0.002, 6),
    }
    judged = gate.beside_the_yardstick(before | {spills: gate.Figure(0)}, after | {spills: gate.Figure(4)})
    found = {c.name: c.kind for c in gate.changes(before | {spills: gate.Figure(0)}, judged, thresholds())}
    assert found == {slower: "worse", spills: "worse"}
    assert eager not in judged, "no commit changes eager's kernels"


def test_a_gpu_that_something_else_used_is_told_from_a_regression(gate: ModuleType) -> None:
    """Two rounds of one sweep on an H200, us: a forgotten process ran beside the first."""
    beside = [8.28, 8.61, 8.61, 8.62, 8.62, 8.62, 8.61, 8.6, 8.44, 8.61, 8.62, 8.43, 8.44, 4.13]
    alone = [5.56, 5.04, 4.49, 4.49, 4.49, 4.49, 4.49, 4.49, 4.5]
    value, stats = compute_stats([us * 1e-6 for us in beside + alone], 1)
    name = "softmax.Softmax.track_kernel_cold('torch_inline', '1823x781', 'float16')"
    assert gate.disturbed({name: gate.Figure(value, stats)}) == [name]
    quiet = {f"{name}{i}": measured(gate, 4.5e-6, 0.01, i) for i in range(60)}
    assert gate.disturbed(quiet) == []
    assert gate.disturbed(quiet | {name: gate.Figure(value, stats)}) == [], "one kernel in sixty is that kernel's own"
    assert gate.disturbed({name: gate.Figure(None), "x.track_spill_bytes()": gate.Figure(4)}) == []


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        script("gate").main(["--help"])
    assert stopped.value.code == 0
    assert "python scripts/gate.py main HEAD --bench softmax" in capsys.readouterr().out


COLD = "softmax.Softmax.track_kernel_cold('triton_jit', '4096x4096', 'float16')"
SPILLS = "square.Compiled.track_spill_bytes('triton_jit', 'float32', 'sm_90')"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((COLD, "worse", 18e-6, 19.3e-6, 0.04), f"    worse  {COLD}  18 us -> 19.3 us, +7.2%, 4% is allowed"),
        ((SPILLS, "worse", 0, 64, 0.0), f"    worse  {SPILLS}  0 bytes -> 64 bytes, none is allowed"),
        ((COLD, "fails now", 18e-6, None, 0.04), f"fails now  {COLD}  18 us -> failed"),
        ((SPILLS, "better", 64, 0, 0.0), f"   better  {SPILLS}  64 bytes -> 0 bytes, -100.0%, none is allowed"),
    ],
)
def test_a_line_says_how_much_what_is_allowed_and_which(change: Any, said: str) -> None:
    assert summary.Change(*change).line() == said


def test_a_summary_has_the_worst_first_and_what_was_not_judged(gate: ModuleType) -> None:
    other, lost, broken = (SPILLS.replace("triton_jit", backend) for backend in ("cupy_raw", "numba_cuda", "torch_inline"))
    before = {SPILLS: gate.Figure(0), other: gate.Figure(64), lost: gate.Figure(0), broken: gate.Figure(None)}
    after = {SPILLS: gate.Figure(64), other: gate.Figure(0), lost: gate.Figure(math.nan), broken: gate.Figure(None)}
    told = gate.judged("main", "mine", before, after, thresholds()).markdown()
    assert "**1 of 2 figures of mine are worse than those of main: the gate is shut.**" in told
    rows = [line for line in told.splitlines() if line.startswith("| ")]
    assert rows[1:] == [
        f"| worse | `{SPILLS}` | 0 bytes | 64 bytes |  | none |",
        f"| better | `{other}` | 64 bytes | 0 bytes | -100.0% | none |",
    ]
    assert f"- n/a in mine alone: `{lost}`" in told, "a backend that is gone is no better one"
    assert f"- failed in both: `{broken}`" in told
    assert "all times (no GPU here, or --bench leaves them out)" in told


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({}, {SPILLS: 0}, "main gave no figure"), ({SPILLS: None}, {SPILLS: 0}, "main gave no figure: 1 cells failed"),
        ({SPILLS: 0}, {}, "mine gave no figure"), ({SPILLS: 0}, {SPILLS: math.nan}, "mine gave no figure: 0 cells failed, 1 are n/a"),
        ({SPILLS: 0, COLD: math.nan}, {SPILLS: math.nan, COLD: 1e-5}, "no cell has a figure both of main and of mine"),
    ],
)  # fmt: skip
def test_where_a_commit_gave_no_figures_nothing_is_judged(gate: ModuleType, before: Any, after: Any, said: str) -> None:
    commits = [{name: gate.Figure(value) for name, value in found.items()} for found in (before, after)]
    with pytest.raises(gate.Unjudged, match=said):
        gate.judged("main", "mine", *commits, thresholds())


def test_a_head_that_fails_everywhere_is_worse_and_not_unmeasured(gate: ModuleType) -> None:
    assert gate.judged("main", "mine", {SPILLS: gate.Figure(0)}, {SPILLS: gate.Figure(None)}, thresholds()).worse == 1


def workflow_steps(job: str) -> tuple[dict[str, str], list[str]]:
    """A job's environment on a pull request, and what its steps run."""
    import yaml  # comes with asv

    told = yaml.safe_load((ROOT / ".github" / "workflows" / "gate.yml").read_text())
    of_job = told["jobs"][job]
    unasked = re.compile(r"\$\{\{ inputs\.\w+ \|\| '(.*)' \}\}")
    env = {name: unasked.sub(r"\1", value) for name, value in {**told["env"], **of_job["env"]}.items()}
    checkout = next(step for step in of_job["steps"] if step.get("uses", "").startswith("actions/checkout"))
    assert checkout["with"]["fetch-depth"] == 0, "asv checks both commits out from this clone"
    return env, [step["run"] for step in of_job["steps"] if "run" in step]


def shell(step: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """As a runner does it, with `folder` for its temporary one."""
    env = {**os.environ, **env, "RUNNER_TEMP": str(folder), "GITHUB_STEP_SUMMARY": str(folder / "summary")}
    return subprocess.run(["bash", "-e", "-c", step], cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("job", ["compilers", "times"])
def test_the_workflow_asks_make_and_the_gate_for_what_they_have(job: str, tmp_path: Path) -> None:
    env, steps = workflow_steps(job)
    (measure,) = (step for step in steps if re.search(r"^make ", step, re.MULTILINE))
    done = shell("make() { printf '%s\\n' \"$@\"; }\n" + measure, tmp_path, env)
    target, base, head, arguments = done.stdout.splitlines()
    assert re.search(rf"^{target}:.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert (base, head) == ("BASE=HEAD^1", "HEAD=HEAD"), "what merging gives, beside what it is merged into"
    wanted = script("gate")._arguments(["HEAD^1", "HEAD", *shlex.split(arguments.removeprefix("ARGS="))])
    assert (wanted.summary, wanted.status) == (tmp_path / "summary", tmp_path / "gate-status")
    (pattern,) = wanted.bench
    chosen = [bool(re.search(pattern, name)) for name in (COLD, SPILLS)]
    assert chosen == [job == "times", job == "compilers"], "a GPU's job measures nothing where no GPU is found, and says so"


@pytest.mark.parametrize(
    ("job", "status", "exit_status", "said"),
    [
        ("compilers", "0", 0, ""), ("compilers", "1", 1, "::error title=Kernels got worse"), ("times", "1", 1, "::error title=Slower"),
        ("times", "0", 0, ""), ("compilers", "2", 1, "::error title=Not judged"), ("times", "2", 0, "::warning title=Not judged"),
        ("compilers", "", 1, "::error title=Not judged"), ("times", None, 1, "::error title=Not judged"),
    ],
)  # fmt: skip
def test_the_workflow_tells_slower_from_not_judged(job: str, status: str | None, exit_status: int, said: str, tmp_path: Path) -> None:
    if status is not None:
        (tmp_path / "gate-status").write_text(f"{status}\n")
    _, steps = workflow_steps(job)
    done = shell(steps[-1], tmp_path, {})
    assert (done.returncode, said in done.stdout) == (exit_status, True), done.stdout + done.stderr


# Below: the gate itself, over a repository of its own.
ONE = ("--bench", r"square.Compiled.track_registers\('triton_jit', 'float32', 'sm_90'")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[SmallHistory, subprocess.CompletedProcess[str]]:
    """A run whose head spills; its results stay where the next one might find them."""
    made = SmallHistory(tmp_path_factory.mktemp("gate"))
    made.commit("first")
    made.commit("spills", spilled=64)
    return made, gate_of(made, "--bench", r"square\..*'float32'", "--summary", "told.md")


def gate_of(made: SmallHistory, *more: str) -> subprocess.CompletedProcess[str]:
    return made.run("scripts/gate.py", "HEAD^1", "HEAD", *more, "--status", "status")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("gate")
class TestOverCommits:
    def test_it_names_what_got_worse_and_nothing_else(self, run: tuple[SmallHistory, subprocess.CompletedProcess[str]]) -> None:
        made, shut = run
        assert shut.returncode == 1, shut.stdout + shut.stderr
        worse = [line.strip() for line in shut.stdout.splitlines() if line.strip().startswith("worse")]
        cells = [SPILLS.replace("sm_90", arch) for arch in ("sm_100", "sm_80", "sm_90")]
        assert worse == [f"worse  {cell}  0 bytes -> 64 bytes, none is allowed" for cell in cells]
        assert "Benchmarks that have got worse" in shut.stdout, "asv compare --split has its say"
        assert not (made.folder / ".asv-gate.conf.json").exists()
        assert "the gate is shut" in (made.folder / "told.md").read_text()
        assert (made.folder / "status").read_text() == "1\n"

    @pytest.mark.parametrize(
        ("spoil", "bench", "said"),
        [("", ("--bench", "nothing_matches"), "no benchmark's name matches"), ("x = (", ONE, "does not import")],
        ids=["nothing matches", "the suite does not import"],
    )
    def test_an_earlier_run_s_figures_are_not_judged(
        self, run: tuple[SmallHistory, subprocess.CompletedProcess[str]], spoil: str, bench: tuple[str, str], said: str
    ) -> None:
        made, _ = run
        suite = made.folder / "benchmarks" / "square.py"
        whole = suite.read_text()
        suite.write_text(whole + spoil)
        done = gate_of(made, *bench)
        suite.write_text(whole)
        assert (done.returncode, (made.folder / "status").read_text()) == (2, "2\n"), done.stdout + done.stderr
        assert said in done.stdout

    def test_two_at_a_time_are_refused(self, run: tuple[SmallHistory, subprocess.CompletedProcess[str]]) -> None:
        made, _ = run
        with (made.folder / ".asv" / "gate.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = gate_of(made, *ONE)
        assert (done.returncode, "another gate runs in this checkout" in done.stdout) == (2, True), done.stdout + done.stderr

    def test_ctrl_c_leaves_nothing_behind(self, run: tuple[SmallHistory, subprocess.CompletedProcess[str]]) -> None:
        made, _ = run
        made.commit("slow", source="import time\ntime.sleep(60)\n")
        process = subprocess.Popen(
            [sys.executable, "scripts/gate.py", "HEAD^1", "HEAD", *ONE], cwd=made.folder, env=made.environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,  # a shell's & has it ignored, and pytest with it
        )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if "Benchmarking" in line:
                break
        assert (made.folder / ".asv-gate.conf.json").exists()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert "Interrupted: nothing is judged" in said
        assert not (made.folder / ".asv-gate.conf.json").exists()
