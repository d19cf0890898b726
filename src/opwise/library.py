"""Recorded runs: the user's (./results, or --out), and those that ship with opwise."""

from __future__ import annotations

from pathlib import Path

from opwise.run_files import run_name, runs


class NoSuchRun(LookupError):
    """No stored run matches; the message says where it was looked for."""


def shipped() -> Path:
    """results/ of the checkout, or the copy inside an installed wheel."""
    package = Path(__file__).resolve().parent
    inside = package / "_results"
    return inside if inside.is_dir() else package.parents[1] / "results"


def stored(folder: Path, device_prefix: str = "") -> list[Path]:
    """Every run in `folder` and every one that ships with opwise, each once, oldest first."""
    places = {place.resolve(): place for place in (shipped(), folder)}
    return sorted((path for place in places.values() for path in runs(place, device_prefix)), key=run_name)


def find(run: str | None, folder: Path, device_prefix: str = "", label: str = "") -> Path:
    """A run by path, by part of its name, or the newest (of a device; of a whole set, `label`). Runs of `opwise block` match only if no
    other does. Raises NoSuchRun."""
    if run and Path(run).is_file():
        return Path(run)
    places = [folder] + ([shipped()] if shipped().resolve() != folder.resolve() else [])
    for blocks in (False, True):
        for place in places:
            named = (p for p in runs(place, device_prefix) if (not run or run in str(p)) and (not label or is_whole(p, label)))
            if fitting := [p for p in named if is_block(p) is blocks]:
                return fitting[-1]
    known = [str(p) for place in places for p in runs(place)]
    wanted = f"no stored run fits {run!r}" if run else f"no stored run{f' of {device_prefix}' if device_prefix else ''}"
    listing = "; known: " + ", ".join(known[-5:]) if known else "; `opwise run` makes one"
    raise NoSuchRun(f"{wanted} under {' or '.join(map(str, places))}{listing}")


def is_whole(run: Path, label: str) -> bool:
    """Returns whether it is a run of all of that set. A run of some workloads or implementations is called a part."""
    return f"-{label}-" in run.name and f"-{label}-part-" not in run.name


def is_block(run: Path) -> bool:
    """Returns whether it is a run of `opwise block`, which holds no cells."""
    return "-block-" in run.name
