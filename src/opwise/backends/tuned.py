"""The configuration that a plan takes: the fastest measured by `opwise tune` on this GPU, else the shipped choice.

A plan asks when it is built, not in a call. A stored table is looked up once per process. A table that was measured with other kernels,
libraries or another driver is ignored, with one warning.

    choices = look("triton_jit/softmax", x.device)
    name = choices.pick("float16", (rows, columns), known)       # None: nothing is known of these sizes, take the shipped choice
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
    """The forced configuration is not one of those that the workload can have here."""


@dataclass(frozen=True)
class Choices:
    """The sources of a plan's choice: the user's table and, for matmul, the shipped times. forced: the configuration to take regardless of
    them, while configurations are measured."""

    table: Table | None = None
    forced: str = ""
    ships: Mapping[str, measured.Row] = field(default_factory=dict)

    def pick(self, dtype: str, sizes: tuple[int, ...], known: Collection[str]) -> str | None:
        """The name, one of `known`, of a workload's configuration; None if the plan must decide.

        dtype: as in Workload. sizes: from OpSpec.sizes. Raises NoSuchConfiguration if the forced one is not in `known`.
        """
        if self.forced:
            if self.forced not in known:
                raise NoSuchConfiguration(
                    f"{self.forced} is not among what {sizes} in {dtype} can have here: {', '.join(known) or 'nothing'}"
                )
            return self.forced
        return self.tuned(dtype, sizes, known) or measured.quickest(self.ships.get(measured.workload(dtype, sizes), {}), known)

    def tuned(self, dtype: str, sizes: tuple[int, ...], known: Collection[str]) -> str | None:
        """As `pick`, by the user's table alone."""
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
    """A forced configuration. asked: whether a plan has looked it up since."""

    configuration: str
    asked: bool = False


def nearest(chosen: Mapping[tuple[int, ...], str], sizes: tuple[int, ...]) -> str | None:
    """The choice of the nearest measured sizes, by the sum of |log ratio|; None if there are none. Ties go to the smaller sizes."""

    def distance(other: tuple[int, ...]) -> float:
        return sum(abs(math.log(max(a, 1) / max(b, 1))) for a, b in zip(sizes, other, strict=True))

    return chosen[min(sorted(chosen), key=distance)] if chosen else None


@contextlib.contextmanager
def forced(name: str, configuration: str) -> Iterator[Forced]:
    """Within the block, every plan that asks the table `name` gets this configuration. Not reentrant, not thread-safe."""
    _forced[name] = now = Forced(configuration)
    try:
        yield now
    finally:
        del _forced[name]


def look(name: str, device: torch.device) -> Choices:
    """The choices of the table `name` on a device. A device without CUDA has none, unless one is forced."""
    if name in _forced:
        _forced[name].asked = True
        return Choices(forced=_forced[name].configuration)
    root = tuned_table.folder()
    if root is None or device.type != "cuda":
        return shipped(name, device)
    return _stored(name, _index(device), root)


def shipped(name: str, device: torch.device) -> Choices:
    """The choices without a user's table."""
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
    """(table, "") of a file whose table fits `facts`; else (None, the reason and the command to run)."""
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
    """The digest of measurements on this machine that decide which kernels a backend runs: its tuned tables and, for matmul, the GPU's
    measured rates; "" if only shipped ones are used."""
    known = tuned_table.tunables([op], backend)
    own = tuned_table.digest_of(look(t.name, device).table for t in known)
    if device.type != "cuda" or op != "matmul" or not known:
        return own
    return joined(own, gpu.digest(torch.cuda.get_device_name(_index(device))))


def joined(*digests: str) -> str:
    """The digests that are not empty, joined by "-"."""
    return "-".join(filter(None, digests))
