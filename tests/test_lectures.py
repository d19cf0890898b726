"""The lectures in examples/ run, here on the CPU and the same on a GPU, print no time where there is no GPU, and open as notebooks."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest
import support

ROOT = Path(__file__).resolve().parents[1]
LECTURES = sorted((ROOT / "examples").glob("lecture_*.py"))
SAID = {
    "lecture_1_timing": "wall clock: ",
    "lecture_2_gelu": "by_hand: 9 operators",
    "lecture_3_softmax": "unshifted [[",
    "lecture_4_matmul": f"largest difference to {'cuBLAS' if support.ON_GPU else 'torch on the CPU'}",
}
TIME = re.compile(r"\d+(\.\d+)? (us|ms|GB/s|Tflop/s)\b")


def test_there_is_one_for_each_subject() -> None:
    assert [path.stem for path in LECTURES] == list(SAID)


@pytest.mark.parametrize("path", LECTURES, ids=lambda path: path.stem)
def test_it_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path))  # in this process, where support has made Triton what it is to be
    said = capsys.readouterr().out
    assert SAID[path.stem] in said
    assert bool(TIME.search(said)) == (support.ON_GPU and path.stem != "lecture_4_matmul"), "a time is a GPU's, or is not told"
    assert "wrong" not in said
    assert support.ON_GPU or "cuBLAS" not in said, "a CPU's product is not cuBLAS's"


@pytest.mark.parametrize("path", LECTURES, ids=lambda path: path.stem)
def test_what_needs_a_gpu_is_said_without_one(path: Path) -> None:
    asked = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If) and ast.unparse(node.test) == "ON_GPU"]
    silent = [node.lineno for node in asked if "print(" in ast.unparse(node.body) and not node.orelse]
    assert silent == [], "these lines print with a GPU and nothing without"


@pytest.mark.parametrize("path", LECTURES, ids=lambda path: path.stem)
def test_its_cells_are_marked(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[0] == "# %% [markdown]"
    assert sum(line == "# %%" for line in lines) >= 4
    assert len(lines) < 110, "a lecture has an hour"
