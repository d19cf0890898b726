"""Which configuration a plan takes: the one that `opwise tune` measured to be quickest on this GPU, else what ships.

A plan asks at build, never in a call. A stored table is looked up once a process; where there is none, that is one question to the file
system. One that was measured with other kernels, libraries or another driver is not used, and a warning says so, once.

    choices = look("triton_jit/softmax", x.device)
    name = choices.pick("float16", (rows, columns), known)       # None: nothing is known of these sizes, take the shipped way
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from opwise.backends import tuned_table
from opwise.backends.gemm import gpu, measured
from opwise.backends.tuned_table import TUNABLE, Table, TornTable


class NoSuchConfiguration(ValueError):
    """What was forced is not among what the workload can have here."""


@dataclass(frozen=True)
class Choices:
    """What a plan is told: by the user's table, and of matmul by the times that ship. `forced`: the one configuration that is wanted, while
    configurations are measured."""

    table: Table | None = None
    forced: str = ""
    ships: Mapping[str, measured.Row] = field(default_factory=dict)

    def pick(self, dtype: str, sizes: tuple[int, ...], known: Collection[str]) -> str | None:
        """The name, one of `known`, that a workload gets; None where the plan must decide by itself.

        dtype as in workloads; sizes as by OpSpec.sizes. Raises NoSuchConfiguration.
        """
        if self.forced:
            if self.forced not in known:
                raise NoSuchConfiguration(
                    f"{self.forced} is not among what {sizes} in {dtype} can have here: {', '.join(known) or 'nothing'}"
                )
            return self.forced
        return self.tuned(dtype, sizes, known) or measured.quickest(self.ships.get(measured.workload(dtype, sizes), {}), known)

    def tuned(self, dtype: str, sizes: tuple[int, ...], known: Collection[str]) -> str | None:
        """By the user's table alone."""
        if self.table is None:
            return None
        row = self.table.by_sizes.get((dtype, sizes))
        if row is not None and row.chosen in known:
            return row.chosen
        rule = self.table.elsewhere.get(dtype)
        if rule is None or rule.rule != "nearest":
            return None
        near = nearest({other: r.chosen for (of, other), r in self.table.by_sizes.items() if of == dtype}, sizes)
        return near if near in known else None


SHIPPED = Choices()
_forced: dict[str, Forced] = {}


@dataclass
class Forced:
    """What a table is made to say. `asked`: has a plan asked it since?"""

    configuration: str
    asked: bool = False


def nearest(chosen: Mapping[tuple[int, ...], str], sizes: tuple[int, ...]) -> str | None:
    """What the nearest of the measured sizes got, by the logarithms of their ratios; None of nothing. Ties go to the smaller sizes."""

    def distance(other: tuple[int, ...]) -> float:
        return sum(abs(math.log(max(a, 1) / max(b, 1))) for a, b in zip(sizes, other, strict=True))

    return chosen[min(sorted(chosen), key=distance)] if chosen else None


@contextlib.contextmanager
def forced(name: str, configuration: str) -> Iterator[Forced]:
    """Within, every plan that asks the table `name` gets this configuration. Not nested, and of one thread."""
    _forced[name] = now = Forced(configuration)
    try:
        yield now
    finally:
        del _forced[name]


def look(name: str, device: torch.device) -> Choices:
    """What there is to say of the table `name` on a device: of what runs in a stand-in, nothing."""
    if name in _forced:
        _forced[name].asked = True
        return Choices(forced=_forced[name].configuration)
    root = tuned_table.folder()
    if root is None or device.type != "cuda":
        return shipped(name, device)
    return _stored(name, _index(device), root)


def shipped(name: str, device: torch.device) -> Choices:
    """What is said without a table of the user's."""
    return _shipped(name, _index(device)) if device.type == "cuda" and TUNABLE[name].op == "matmul" else SHIPPED


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


@cache
def _shipped(name: str, index: int) -> Choices:
    rows = measured.of(torch.cuda.get_device_name(index)).get(name)
    return Choices(ships=rows) if rows else SHIPPED


@cache
def _stored(name: str, index: int, root: Path) -> Choices:
    ships = shipped(name, torch.device("cuda", index))
    path = tuned_table.path_of(root, name, torch.cuda.get_device_name(index))
    if not path.is_file():
        return ships
    table, why = usable(path, _facts(index))
    if table is None:
        warnings.warn(why, stacklevel=2)
        return ships
    return replace(ships, table=table)


def usable(path: Path, facts: Mapping[str, Any]) -> tuple[Table | None, str]:
    """The table of a file, where it may be used by what `facts` tell of; else None, and why, with the command that helps."""
    try:
        table = tuned_table.read(path)
    except (TornTable, OSError) as error:
        return None, str(error)
    if why := tuned_table.misfit(table, facts):
        op = TUNABLE[table.name].op if table.name in TUNABLE else "--reset"
        return None, f"the tuned table {path} is not used ({why}): opwise tune {op} measures it anew"
    return table, ""


@cache
def _facts(index: int) -> Mapping[str, Any]:
    from opwise.measure.device import facts

    found = facts(torch.device("cuda", index))
    return {**found, "driver": str(found.get("driver") or "")}


def in_force(backend: str, op: str, device: torch.device) -> str:
    """The digest of what was measured here and decides which kernels of a backend run: its tuned tables and, of matmul, the GPU's numbers;
    "" where what ships is all there is."""
    known = tuned_table.tunables([op], backend)
    own = tuned_table.digest_of(look(t.name, device).table for t in known)
    if device.type != "cuda" or op != "matmul" or not known:
        return own
    return joined(own, gpu.digest(torch.cuda.get_device_name(_index(device))))


def joined(*digests: str) -> str:
    """One digest of several, "" of none."""
    return "-".join(filter(None, digests))
