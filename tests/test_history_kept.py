"""The history that is kept under results/ is of today's benchmarks."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asv_runner", reason="asv is not installed: pip install 'opwise[asv]'")
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "asv"


@pytest.fixture(autouse=True)
def _suite_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def load(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def test_what_is_stored_is_of_today_s_versions_of_the_benchmarks() -> None:
    """asv shows no figure of another version: it would be a point that nobody sees."""
    known = {name: benchmark["version"] for name, benchmark in load(RESULTS / "benchmarks.json").items() if name != "version"}
    for name, version in known.items():
        module, class_name, method = name.split(".")
        cls = getattr(importlib.import_module(f"benchmarks.{module}"), class_name)
        assert version == getattr(getattr(cls, method), "version", cls.version), f"{name}: asv run anything rewrites benchmarks.json"
    for path in RESULTS.glob("*/*-*.json"):
        kept = load(path)
        at = kept["result_columns"].index("version")
        of_others = {name: columns[at] for name, columns in kept["results"].items() if columns[at] != known.get(name)}
        assert not of_others, path.name
