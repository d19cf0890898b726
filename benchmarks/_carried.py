"""Which cells need no measuring: their sources or their machine code were measured at another commit, with the same libraries and driver.

A commit's file, results/history/<machine>/<commit>.json.gz, has of each cell how it is known (`source`, `code`: digests), and either its
figures or the commit that they are carried over from. Sources are compared before anything is built, with all versions of libraries and
compilers; machine code after building, with torch and the driver, since it tells what compilers made.

Some cells are measured although they need not be (CONTROL of them, the same ones in every sweep): what moved there moved without a change.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Key = tuple[str, ...]  # op, backend, shape, dtype
Cell = dict[str, Any]
CONTROL = 6
LASTING = ("ok", "unsupported")  # what failed may have failed by chance
OF_CODE = ("torch", "driver")  # what machine code does not tell


def control(keys: Iterable[Key]) -> frozenset[Key]:
    """Those that are measured anyway: drawn by their names, so that they are the same everywhere."""
    return frozenset(sorted(keys, key=lambda key: hashlib.sha256("/".join(key).encode()).digest())[:CONTROL])


@dataclass
class Store:
    """folder: of one machine. versions: of what runs here, by which what was measured elsewhere is left aside."""

    folder: Path
    commit: str
    versions: Mapping[str, str]
    cells: dict[Key, Cell] = field(default_factory=dict)  # of this commit: source, code, and figures or carried
    _known: dict[tuple[str, ...], tuple[str, Cell]] | None = None

    @property
    def path(self) -> Path:
        return self.folder / f"{self.commit[:8]}.json.gz"

    def find(self, key: Key, source: str, code: str = "") -> tuple[str, Cell] | None:
        """(the commit that measured it, figures) of the cell; by its machine code where that is given, else by its sources."""
        if self._known is None:
            self._known = {}
            for path in sorted(self.folder.glob("*.json.gz"), key=lambda path: (path == self.path, path.name)):
                self._add(path)
        digest, names = (code, OF_CODE) if code else (source, sorted(self.versions))
        return self._known.get((*key, "code" if code else "source", digest, *(self.versions.get(n, "") for n in names))) if digest else None

    def _add(self, path: Path) -> None:
        assert self._known is not None
        data = read(path)
        versions: dict[str, str] = data["versions"]
        for name, cell in data["cells"].items():
            if cell.get("figures", {}).get("status") not in LASTING:
                continue
            entry, key = (data["commit"], cell["figures"]), tuple(name.split("/"))
            by_source = (*key, "source", cell["source"], *(versions.get(n, "") for n in sorted(self.versions)))
            by_code = (*key, "code", cell["code"], *(versions.get(n, "") for n in OF_CODE))
            self._known |= {by_source: entry} if versions == dict(self.versions) else {}
            self._known |= {by_code: entry} if cell["code"] else {}

    def measured(self, key: Key, source: str, code: str, figures: Cell) -> None:
        self.cells[key] = {"source": source, "code": code, "figures": figures}

    def carried(self, key: Key, source: str, code: str, origin: str) -> None:
        self.cells[key] = {"source": source, "code": code, "carried": origin}

    def write(self, found: str) -> None:
        """Beside what this commit's file has of other cells. found: what the control found."""
        cells = {"/".join(key): cell for key, cell in self.cells.items()}
        if self.path.is_file():
            earlier = read(self.path)
            if earlier["versions"] == dict(self.versions):
                cells = earlier["cells"] | cells
        self.folder.mkdir(parents=True, exist_ok=True)
        data = {"commit": self.commit, "versions": dict(self.versions), "control": found, "cells": dict(sorted(cells.items()))}
        fresh = self.path.with_suffix(".part")
        fresh.write_bytes(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0))
        fresh.replace(self.path)


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(gzip.decompress(path.read_bytes())))


def compared(pairs: Mapping[Key, tuple[Cell, Cell]]) -> str:
    """What the control found: how far the times moved of cells that are the same, (carried, measured now)."""
    moved = {}
    for key, (before, after) in pairs.items():
        old, new = (middle(cell.get("kernel_cold")) for cell in (before, after))
        if old and new:
            moved["/".join(key)] = new / old - 1
    if not moved:
        return ""
    worst = max(moved, key=lambda name: abs(moved[name]))
    least, most = min(moved.values()), max(moved.values())
    return f"control: {len(moved)} cells that were carried over, measured again: {least:+.1%} to {most:+.1%}, most at {worst}"


def middle(value: Any) -> float | None:
    """The median of a figure's samples."""
    samples = sorted(value["samples"]) if value else []
    return float(samples[len(samples) // 2]) if samples else None
