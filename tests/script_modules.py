"""The programs in scripts/ and beside them, as modules: their functions are tested without a process of their own."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@cache
def script(name: str, folder: Path = SCRIPTS) -> ModuleType:
    """`name` as in scripts/gate.py: "gate"."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
