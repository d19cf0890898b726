"""What is tracked under results/ stays small, and what nothing reads is told from what is read."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from bar_runs import SOFTMAX, cell, full_run
from recorded_runs import ROOT, stored
from script_modules import script

from opwise.run_files import runs

MOST_BYTES = 10_000_000


def test_what_is_tracked_under_results_is_ten_megabytes_at_most() -> None:
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z", "results"], capture_output=True, text=True, check=False)
    if not (ROOT / ".git").exists() or listed.returncode:
        pytest.skip(f"no git checkout, nothing says what is tracked: {listed.stderr.strip()}")
    sizes = {name: (ROOT / name).stat().st_size for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    assert sizes, "git tracks nothing under results/"
    largest = sorted(sizes, key=sizes.__getitem__)[-5:]
    assert sum(sizes.values()) <= MOST_BYTES, f"results/README.md says what to drop; the largest: {', '.join(largest)}"


def test_a_run_is_read_until_newer_ones_have_all_that_it_has(tmp_path: Path) -> None:
    """Five bars runs of the same kernels, of which the newest three count; before them one with a cell of its own, and a core run."""

    def run(day: int, label: str, *records: object) -> Path:
        dated = [replace(r, time=f"2026-01-0{day}T00:00:00+00:00", sol=1 - day / 1000) for r in records]  # type: ignore[type-var]
        return stored(tmp_path, *dated, name=f"2026010{day}T000000Z-{label}-abc1234")

    softmax = [r for r in full_run() if r.workload == SOFTMAX]
    alone = run(1, "grid-part", cell("triton_jit", replace(SOFTMAX, shape=(31, 41))))
    core = run(2, "core", cell("triton_jit", SOFTMAX))
    bars = [run(day, "bars-part", *softmax) for day in range(3, 8)]
    read = script("diet").readers(runs(tmp_path), ["as `opwise show bars-part-abc1234` has it"])
    assert list(read) == [alone, core, *bars]
    assert read[alone] == ["choose: 1 cells"]
    assert read[core] == ["the newest core"]
    assert read[bars[0]] == read[bars[1]] == ["named by a page"]
    assert read[bars[2]] == read[bars[3]] == ["bars", "named by a page"]
    assert read[bars[4]][1:] == ["bars", "the newest", "named by a page"]
    assert read[bars[4]][0].startswith("choose: ")
    assert {path for path, why in script("diet").readers(runs(tmp_path)).items() if not why} == set(bars[:2])
