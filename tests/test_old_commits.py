"""Today's instruments over the ops and backends of the project's first commit: what history stands on.

What the runner asks of a commit has to be what every commit has, or the history goes dark on one side of the change.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import needs

needs("asv")
ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from benchmarks._order import Order
from benchmarks._timed import _figures, there
from opwise.ops.spec import Workload
from opwise.runner import Job, run_jobs
if __name__ == "__main__":
    for op, shape in (("softmax", "3x33"), ("matmul", "4x5x6"), ("mean", "100")):
        key = (op, "torch_eager", shape, "float32")
        assert key in list(there(Order((key,), ()), (key,)))
        job = Job(Workload.parse(op + "/" + shape + "/float32"), ("torch_eager/" + op,), "cpu", timed=False, brief=True)
        print([_figures(record)["status"] for event in run_jobs([job], "cpu") for record in event.records])
"""


def git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


@pytest.mark.slow
def test_the_first_commit_still_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = git("rev-list", "--max-parents=0", "HEAD").splitlines()[-1:]
    if not first or not git("ls-tree", "-d", first[0], "src/opwise/ops"):
        pytest.skip("this checkout has no history: git clone without --depth")
    monkeypatch.syspath_prepend(str(ROOT))
    import asv_inplace

    environment = asv_inplace.InPlace.__new__(asv_inplace.InPlace)
    environment._path, environment._build_root = str(tmp_path), str(tmp_path / "project")
    asv_inplace.unpacked(tmp_path / "project", first[0])
    environment._graft()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(root=str(ROOT)))
    path = os.pathsep.join(filter(None, [str(tmp_path / "graft"), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, str(program)], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split("\n")[:3] == ["['ok']"] * 3, done.stderr[-3000:]
