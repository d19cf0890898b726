"""asv_offline.py where npm gets no answer; tests/test_dashboard.py has it where it gets one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recorded_runs import ROOT
from script_modules import script
from support import needs

needs("asv")
SILENT = """#!/bin/sh
[ "$1" = config ] && { echo https://registry.example/; exit; }
exec sleep 60
"""


def test_a_registry_that_does_not_answer_is_named_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm = tmp_path / "npm"
    npm.write_text(SILENT)
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    offline = script("asv_offline", ROOT)
    monkeypatch.setattr(offline, "FETCHED", tmp_path / "www")
    monkeypatch.setattr(offline, "PATIENCE_S", 1.0)
    assert offline.fetch().startswith("npm had no answer from https://registry.example/ in 1 s: reach it, or name another")
