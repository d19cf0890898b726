"""What the package is to opwise: an entry point, five short ops, and no Helion before it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import needs_helion
from opwise.ops import OURS as OPS

import opwise_helion

FOLDER = Path(opwise_helion.__file__).parent


def test_the_entry_point_leads_to_a_backend_of_all_ops() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["opwise.backends"] == {"helion": opwise_helion.__name__}
    assert {path.stem for path in FOLDER.glob("*.py")} >= set(OPS)


@pytest.mark.parametrize("op", OPS)
def test_no_op_is_longer_than_80_lines(op: str) -> None:
    assert len((FOLDER / f"{op}.py").read_text().splitlines()) <= 80


def _run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment}
    )


def test_importing_it_imports_neither_helion_nor_triton() -> None:
    done = _run("import sys, opwise_helion; print([name for name in ('helion', 'triton') if name in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_without_helion_it_says_what_to_do() -> None:
    done = _run("import sys; sys.modules['helion'] = None; import torch, opwise_helion; opwise_helion.probe(torch.device('cpu'))")
    assert "BackendUnavailable" in done.stderr
    assert "pip install 'helion>=1.5.1,<2'" in done.stderr or "triton" in done.stderr


@needs_helion
def test_the_interpreter_is_no_compiler() -> None:
    done = _run("import opwise_helion; opwise_helion.compile_only('sm_90')", TRITON_INTERPRET="1")
    assert "unset TRITON_INTERPRET" in done.stderr


@needs_helion
def test_what_the_environment_asks_of_helion_changes_nothing() -> None:
    script = (
        "import torch; from opwise_helion import gelu, planning, elementwise;"
        "plan = planning.planned(planning.Way(gelu.gelu_kernel, elementwise.config(1024, 4)), torch.empty(5000), torch.empty(5000));"
        "print(plan.grid, plan.options, len(plan.arguments))"
    )
    asked = {"HELION_INTERPRET": "1", "HELION_FORCE_AUTOTUNE": "1", "HELION_STATIC_SHAPES": "0", "HELION_BACKEND": "pallas"}
    assert _run(script, **asked).stdout == _run(script).stdout == "(5, 1, 1) {'num_warps': 4, 'num_stages': 1} 2\n"
