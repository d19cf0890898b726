"""The stored tables of a device, which of them are in force, and why others are not. Needs no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from opwise.backends import tuned_table
from opwise.backends.gemm import gpu
from opwise.backends.tuned import joined, usable
from opwise.backends.tuned_table import TUNABLE, Table, TornTable, Tunable

Facts = Mapping[str, Any]  # device, capability, driver, versions, as in records


@dataclass(frozen=True)
class Standing:
    """One tunable table on one device: the stored one if it is in force, else None; `why`: the reason."""

    tunable: Tunable
    table: Table | None = None
    why: str = ""


def standing(facts: Facts, known: Sequence[Tunable] | None = None) -> list[Standing]:
    """The standing of these tables; of all if none is given."""
    root = tuned_table.folder()
    return [_standing(t, root, facts) for t in (TUNABLE.values() if known is None else known)]


def _standing(known: Tunable, root: Path | None, facts: Facts) -> Standing:
    if root is None:
        return Standing(known)
    path = tuned_table.path_of(root, known.name, str(facts["device"]))
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        return Standing(known)
    table, why = _read(path, changed, _Known({**facts, "driver": str(facts.get("driver") or "")}))
    return Standing(known, table, why)


class _Known(dict[str, Any]):
    """Facts as a key: of one process they are few, and each stays as it is."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash((self["device"], self.get("capability"), self["driver"], tuple(sorted(self["versions"].items()))))


@lru_cache(maxsize=64)
def _read(path: Path, changed: int, facts: _Known) -> tuple[Table | None, str]:
    return usable(path, facts)


def in_force(backend: str, op: str, facts: Facts) -> str:
    """As opwise.backends.tuned.in_force, from a device's facts instead of the device."""
    known = tuned_table.tunables([op], backend)
    own = tuned_table.digest_of(s.table for s in standing(facts, known))
    return joined(own, gpu.digest(str(facts["device"]))) if op == "matmul" and known else own


def told(facts: Facts) -> list[str]:
    """A line for the tables in force, and one for each stored table that is not used."""
    found = standing(facts)
    names = [s.tunable.name for s in found if s.table is not None]
    names += ["the GPU's numbers"] if gpu.digest(str(facts["device"])) else []
    lines = [f"tuned tables in force: {', '.join(names)} (opwise tune --show)"] if names else []
    return lines + [s.why for s in found if s.why]


def devices() -> list[str]:
    """The short names of devices with stored tables."""
    root = tuned_table.folder()
    return sorted(path.name for path in root.iterdir() if path.is_dir()) if root is not None and root.is_dir() else []


def stored(known: Sequence[Tunable], device: str) -> list[Standing]:
    """The stored tables of a device that need not be here, in force or not."""
    found = []
    for t in known:
        if path := tuned_table.existing(t.name, device):
            try:
                found.append(Standing(t, tuned_table.read(path)))
            except TornTable as torn:
                found.append(Standing(t, None, str(torn)))
    return found
