"""asv over a history of commits, from end to end and without a GPU: what is measured, compared, published, and what survives a mishap."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_history import SmallHistory
from support import needs

needs("asv")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("history")]

ASV = ("-m", "asv")
SPILLS = "square.Compiled.track_spill_bytes"
BENCH = ("--bench", r"square\..*'float32'(, 'sm_90')?\)")  # asv takes a process for each figure of each cell, timed or compiled
CELL = "('triton_jit', 'float32', 'sm_90')"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[SmallHistory, dict[str, str]]:
    """Three commits, all run once: one that spills nothing, one that does, one that does not import."""
    made = SmallHistory(tmp_path_factory.mktemp("history"))
    commits = {"first": made.commit("first"), "spills": made.commit("spills", spilled=64)}
    commits["broken"] = made.commit("broken", source="import no_such_module_anywhere\n")
    done = made.run(*ASV, "run", "ALL", *BENCH, "--show-stderr")
    made.said = done.stdout + done.stderr
    assert done.returncode in (0, 2), made.said  # 2: a benchmark failed
    return made, commits


def value(made: SmallHistory, commit: str, benchmark: str = SPILLS, cell: str = CELL) -> Any:
    """None failed, nan n/a, as asv itself reads its files back."""
    code = (
        "import json\nfrom asv.results import iter_results_for_machine_and_hash as found\n"
        "from asv.commands.compare import unroll_result\n"
        f"(r,) = found('results/asv', 'compile-only', {commit!r})\np = r.get_result_params({benchmark!r})\n"
        f"print(json.dumps(dict(unroll_result({benchmark!r}, p, r.get_result_value({benchmark!r}, p)))[{benchmark + cell!r}]))"
    )
    done = made.run("-c", code)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_each_commit_has_its_own_kernels_facts(history: tuple[SmallHistory, dict[str, str]]) -> None:
    made, commits = history
    assert [value(made, commits[name]) for name in ("first", "spills")] == [0, 64], made.said
    assert value(made, commits["first"], cell="('cupy_raw', 'float32', 'sm_90')") != 0, "a backend that the commit lacks is n/a"


def test_a_commit_that_does_not_import_fails_and_costs_no_other_its_results(history: tuple[SmallHistory, dict[str, str]]) -> None:
    made, commits = history
    assert value(made, commits["broken"]) is None
    assert set(made.results()) == {commit[:8] for commit in commits.values()}


def test_without_a_gpu_no_time_is_recorded(history: tuple[SmallHistory, dict[str, str]]) -> None:
    made, _ = history
    found = set().union(*(json.loads(text)["results"] for text in made.results().values()))
    assert found == {f"square.Compiled.track_{what}" for what in ("registers", "spill_bytes", "instructions")}
    (machine,) = made.folder.glob("results/asv/*/machine.json")
    facts = json.loads(machine.read_text())
    assert facts["machine"] == machine.parent.name == "compile-only"
    assert {"gpu", "driver", "cuda", "torch", "triton", "cupy", "numba"} <= set(facts)


def test_a_commit_that_was_measured_costs_nothing_more(history: tuple[SmallHistory, dict[str, str]]) -> None:
    made, _ = history
    before = made.results()
    done = made.run(*ASV, "run", "ALL", *BENCH, "--skip-existing")
    assert "Benchmarking" not in done.stdout, done.stdout
    assert made.results() == before


def test_published_pages_need_no_network(history: tuple[SmallHistory, dict[str, str]]) -> None:
    made, _ = history
    done = made.run(*ASV, "publish")
    assert done.returncode == 0, done.stdout + done.stderr
    page = (made.folder / ".asv/html/index.html").read_text()
    assert 'src="vendor/jquery.flot.orderBars.js"' in page
    assert "sideBySide" in (made.folder / ".asv/html/vendor/jquery.flot.orderBars.js").read_text()


def test_a_killed_run_leaves_earlier_results_whole_and_no_sweep_behind(history: tuple[SmallHistory, dict[str, str]]) -> None:
    made, _ = history
    before = made.results()
    slow = made.commit("slow", source="import time\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, *ASV, "run", f"{slow}^!", *BENCH], cwd=made.folder, env=made.environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if "Benchmarking" in line:
            break
    assert eventually(lambda: len(running(made, "setup_cache")) == 1), "the sweep has begun"
    time.sleep(1.0)
    process.kill()  # asv alone
    process.stdout.close()
    process.wait(30)
    assert eventually(lambda: running(made, "setup_cache") == []), "a sweep that outlives asv uses the GPU under the next one"
    assert made.results() == before
    for server in running(made, "run_server"):  # asv's own, which waits for it for ever
        os.kill(server, signal.SIGKILL)


def running(made: SmallHistory, what: str) -> list[int]:
    """Processes of this history whose command line has that word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if what in line and str(made.folder) in line:
                found.append(int(path.parent.name))
    return found


def eventually(true: Callable[[], bool]) -> bool:
    for _ in range(100):
        if true():
            return True
        time.sleep(0.1)
    return False


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the full disk: the kernel refuses the write in the middle."""
    kept = tmp_path / "results.json"
    kept.write_text('{"earlier": 1}')
    code = f"""
import resource, signal, sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r})
import asv_inplace
from asv import util
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
util.write_json({str(kept)!r}, {{"later": "x" * 100000}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert kept.read_text() == '{"earlier": 1}'
    assert os.listdir(tmp_path) == ["results.json"]  # noqa: PTH208
