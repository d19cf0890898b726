"""Which of the recorded runs are read, and by what. The rest is for git's history alone: see results/README.md.

    python scripts/diet.py                        a line a run: its bytes, and what reads it
    git rm $(python scripts/diet.py --unread)     drops those that nothing reads

A run is read where `opwise choose` has a cell from it, where a figure of `opwise bars` changes without it, where it is the newest whole
one of its set on its device (`show`, `report`, `compare`), the newest of all, or where a page names it, as in `core-b117cf7`.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from opwise.bars.judging import Run, judged, read_runs
from opwise.bars.table import BARS
from opwise.choosing.store import Store
from opwise.library import is_whole
from opwise.record import Record, read
from opwise.run_files import run_name, runs
from opwise.runner import SETS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def readers(paths: Sequence[Path], pages: Sequence[str] = ()) -> dict[Path, list[str]]:
    """Run -> what reads it. `paths`: oldest first. `pages`: texts that may name a run."""
    chosen = {said for purpose in ("stream", "graph") for r in Store.load(paths, purpose=purpose).records for said in told(r)}
    cells = Counter({path: sum(not chosen.isdisjoint(told(r)) for r in read(path)) for path in paths})
    judging, newest = of_bars(paths), newest_of(paths)
    return {
        path: [f"choose: {cells[path]} cells"] * bool(cells[path])
        + ["bars"] * (path.name in judging)
        + newest.get(path, [])
        + ["named by a page"] * any(run_name(path).partition("-")[2] in text for text in pages)
        for path in paths
    }


def told(r: Record) -> set[tuple[object, ...]]:
    """What a choice may take of a record by itself: its times, its facts, its energy."""
    cell = r.device, r.implementation, r.workload
    return {(*cell, r.time)} | {(*cell, value) for value in (r.bits, r.idle_w) if value}


def newest_of(paths: Sequence[Path]) -> dict[Path, list[str]]:
    """The runs that a command takes where it is given none, or no more than a device."""
    found: dict[Path, list[str]] = {paths[-1]: ["the newest"]} if paths else {}
    for device in dict.fromkeys(path.parent for path in paths):
        for label in SETS:
            whole = [path for path in paths if path.parent == device and is_whole(path, label)]
            if whole:
                found.setdefault(whole[-1], []).append(f"the newest {label}")
    return found


def of_bars(paths: Sequence[Path]) -> set[str]:
    """The names of the runs that the bars' figures rest on. The oldest are tried first: what they alone hide is not read either."""
    found = read_runs(paths)
    kept: list[Run] = []
    for device in dict.fromkeys(run.device for run in found):
        of_one = [run for run in found if run.device == device]
        figures = _figures(of_one)
        for run in list(of_one):
            rest = [other for other in of_one if other is not run]
            if _figures(rest) == figures:
                of_one = rest
        kept += of_one
    return {run.name for run in kept}


def _figures(found: Sequence[Run]) -> list[tuple[object, ...]]:
    return [(f.values, f.reason) for standing in judged(BARS, found) for f in standing.figures]


def main() -> None:
    parser = argparse.ArgumentParser(description="Which of the recorded runs are read, and by what.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("results"))
    parser.add_argument("--unread", action="store_true", help="the paths of those that nothing reads, and no more")
    given = parser.parse_args()
    for path, why in readers(runs(given.folder), [page.read_text(encoding="utf-8") for page in PAGES]).items():
        if given.unread and not why:
            sys.stdout.write(f"{path}\n")
        elif not given.unread:
            sys.stdout.write(f"{path.stat().st_size:>9} {path}: {', '.join(why) or 'unread'}\n")


if __name__ == "__main__":
    main()
