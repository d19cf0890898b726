"""What the first call is measured with: caches that are empty in one process and full in the next."""

from __future__ import annotations

import importlib.util
import runpy
from functools import partial
from pathlib import Path

import pytest

from opwise.runner.first_call import cold_then_cached

IMPORT = """
import importlib.util, pathlib, sys
here = pathlib.Path(__file__).parent
sys.path.insert(0, str(here))
bytecode = pathlib.Path(importlib.util.cache_from_source(str(here / "imported.py")))
before = bytecode.exists()
import imported
print(before, bytecode.exists(), file=open(here / "seen.txt", "a"))
"""


def test_bytecode_is_among_the_caches_whatever_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process compiles a module's source and the second finds that; beside the source there is nothing."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "imported.py").write_text("x = 1\n")
    (tmp_path / "script.py").write_text(IMPORT)
    assert cold_then_cached("cpu", partial(runpy.run_path, str(tmp_path / "script.py")), "start", None) == (None, None)
    assert (tmp_path / "seen.txt").read_text().splitlines() == ["False True", "True True"]
    assert not Path(importlib.util.cache_from_source(str(tmp_path / "imported.py"))).exists()
