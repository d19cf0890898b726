"""Which of the recorded runs a command takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from opwise import library


def test_the_newest_of_a_set_is_a_run_of_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "shipped", lambda: tmp_path / "none")
    folder = tmp_path / "nvidia-toy"
    folder.mkdir()
    whole, part, other = (
        folder / f"2026010{i}T000000Z-{label}-abc1234.jsonl" for i, label in enumerate(("core", "core-part", "bars"), start=1)
    )
    for path in (whole, part, other):
        path.write_text("")
    assert library.find(None, tmp_path, "nvidia-toy", "core") == whole, "its part is newer, and would be shown as all there is"
    assert library.find(None, tmp_path) == other
    assert library.find("core-part", tmp_path) == part
    with pytest.raises(library.NoSuchRun, match="nvidia-moon"):
        library.find(None, tmp_path, "nvidia-moon", "core")
