"""Which configuration a plan takes: the one that `opwise tune` measured to be quickest on this GPU, else the shipped table's.

A plan asks at build, never in a call. A stored table is looked up once a process; where there is none, that is one question to the file
system. One that was measured with other kernels, libraries or another driver is not used, and a warning says so, once.

    choices = look("triton_jit/matmul", x.device)
    name = choices.pick("float16", "16-bit", (m, k, n), known)       # None: nothing is known of these sizes, take the shipped way
    config = choices.fitted("16-bit", config.name, config)
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from opwise.backends import tuned_table
from opwise.backends.tuned_table import TUNABLE, Table, TornTable

Model = TypeVar("Model")


class NoSuchConfiguration(ValueError):
    """What was forced is not among what the workload can have here."""


@dataclass(frozen=True)
class Choices:
    """What one table says to a plan. `forced`: the one configuration that is wanted, while configurations are measured."""

    table: Table | None = None
    forced: str = ""

    def pick(self, dtype: str, kind: str, sizes: tuple[int, ...], known: Collection[str]) -> str | None:
        """The name, one of `known`, that a workload gets; None where the plan must decide by itself.

        dtype as in workloads; kind: the group of dtypes that share a model; sizes as by OpSpec.sizes. Raises NoSuchConfiguration.
        """
        if self.forced:
            if self.forced not in known:
                raise NoSuchConfiguration(
                    f"{self.forced} is not among what {sizes} in {dtype} can have here: {', '.join(known) or 'nothing'}"
                )
            return self.forced
        if self.table is None:
            return None
        row = self.table.by_sizes.get((dtype, sizes))
        if row is not None and row.chosen in known:
            return row.chosen
        rule = self.table.elsewhere.get(kind)
        if rule is None or rule.rule != "nearest":
            return None
        near = nearest({other: r.chosen for (of, other), r in self.table.by_sizes.items() if of == dtype}, sizes)
        return near if near in known else None

    def numbers(self, kind: str, name: str) -> Mapping[str, float]:
        """What was fitted on this GPU of a configuration's model; empty where nothing was."""
        rule = self.table.elsewhere.get(kind) if self.table is not None else None
        return {} if rule is None or rule.rule != "fitted" else rule.parameters.get(name, {})

    def fitted(self, kind: str, name: str, model: Model) -> Model:
        """A configuration's model (a dataclass) with its numbers as far as they were fitted on this GPU."""
        return with_numbers(model, self.numbers(kind, name))


def with_numbers(model: Model, numbers: Mapping[str, float]) -> Model:
    """The dataclass with these of its fields replaced; itself without any."""
    changed: Model = replace(cast(Any, model), **numbers) if numbers else model
    return changed


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
    """What the table `name` says on a device: of what runs in a stand-in, nothing."""
    if name in _forced:
        _forced[name].asked = True
        return Choices(forced=_forced[name].configuration)
    root = tuned_table.folder()
    if root is None or device.type != "cuda":
        return SHIPPED
    index = torch.cuda.current_device() if device.index is None else device.index
    return _stored(name, index, root)


@cache
def _stored(name: str, index: int, root: Path) -> Choices:
    path = tuned_table.path_of(root, name, torch.cuda.get_device_name(index))
    if not path.is_file():
        return SHIPPED
    table, why = usable(path, _facts(index))
    if table is None:
        warnings.warn(why, stacklevel=2)
        return SHIPPED
    return Choices(table)


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
    """The digest of the tuned tables that a backend asks for an op on a device; "" where the shipped ones are all there is."""
    return tuned_table.digest_of(look(t.name, device).table for t in tuned_table.tunables([op], backend))
