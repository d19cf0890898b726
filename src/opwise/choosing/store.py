"""The stored figures that a choice may use: the newest of each implementation and workload, and whether it is stale.

A record counts only for its own device and compute capability. Facts and energy, which few runs measure, come from the next older record
with the same sources, libraries and driver. A figure is stale if its driver or library versions differ from this machine's (if this machine
has the device; otherwise there is nothing to compare with), if somebody else used the GPU, or if its kernels' sources have changed, unless
they are known to give the same machine code at its shape (machine_code.py). Records without a digest of sources are compared through git by
their commit; if that is unknown, they are stale."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opwise import provenance
from opwise.choosing import machine_code
from opwise.measure.device import is_called
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.record import ENERGY, FACTS, Record, UnknownSchema, of_another_op, read_newest

JUDGED = ("ok", "wrong", "failed", "timeout", "unsupported")  # an implementation that was only missing says nothing of itself
UNTIMED_LIBRARIES = ("nvidia-ml-py",)  # reads temperatures, and is in no figure
Sizes = tuple[int, ...]
INVARIANT = "invariant"  # the variant that is chosen among where only batch-invariant kernels are
# What a run need not be asked for: a field that tells whether it was, how a line that has it shows, and all of the fields.
ASKED_FOR: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "bits": ('"bits": "', FACTS),
    "idle_w": ('"idle_w": ', ENERGY),
}


@dataclass(frozen=True)
class Gpu:
    """A device as records name it. Figures of one are not used for another."""

    device: str
    capability: str

    def __str__(self) -> str:
        return f"{self.device} (compute capability {self.capability})"


@dataclass(frozen=True)
class Figures:
    """The stored figures of one op, dtype and layout on one GPU: backend -> sizes (see OpSpec.sizes) -> the newest timed record. On
    request, variants `invariant` count as backends of their own, such as "cupy_raw:invariant".

    `barred`: backend -> why it cannot be chosen at any shape. `refused`: backend -> workload shape -> why it cannot be chosen there."""

    timed: Mapping[str, Mapping[Sizes, Record]]
    barred: Mapping[str, str]
    refused: Mapping[str, Mapping[tuple[int, ...], str]]


@dataclass
class Store:
    """Records of the unnamed variants and of `invariant`: for each cell and device, that of the newest run that has one; newest last."""

    records: list[Record] = field(default_factory=list)

    @classmethod
    def load(cls, paths: Iterable[Path], op: str = "", purpose: str = "") -> Store:
        """Reads runs, given oldest first. Torn lines, and files that are no run of this schema, are left out with a warning each. purpose:
        for a graph the newest records with a warm time count, which brief runs do not take.

        op: the op asked for; for other ops only the GPUs with figures, and the date of their last one, are kept."""
        known: defaultdict[str, _Known] = defaultdict(lambda: _Known(op, warm=purpose == "graph"))
        for path in reversed(list(paths)):
            try:
                known[path.parent.name].take(path)
            except (UnknownSchema, OSError) as problem:
                warnings.warn(f"left out: {problem}", stacklevel=2)
        return cls(sorted((r for of_device in known.values() for r in of_device.cells.values()), key=lambda r: r.time))

    @property
    def gpus(self) -> list[Gpu]:
        """The GPUs with figures, the one measured last first."""
        return list(dict.fromkeys(Gpu(r.device, r.capability) for r in reversed(self.records) if _timed(r)))

    def named(self, name: str) -> list[Gpu]:
        """The recorded GPUs with a user's name: nvidia-h200, or h200."""
        return [gpu for gpu in self.gpus if is_called(gpu.device, name)]

    def kin(self, op: str, dtype: str, gpu: Gpu, layout: str = "") -> tuple[Gpu, Figures] | None:
        """For a GPU without figures of an op, dtype and layout: the last measured GPU of the same compute capability that has some."""
        alike = (other for other in self.gpus if other.capability == gpu.capability and other != gpu)
        return next(((other, found) for other in alike if (found := self.figures(op, dtype, other, layout)).timed), None)

    def figures(self, op: str, dtype: str, gpu: Gpu, layout: str = "", invariant: bool = False) -> Figures:
        """The figures of an op, dtype and layout on a GPU. An implementation found wrong at any shape is barred until it is found right
        there. invariant: include the variants of that name."""
        newest: dict[tuple[str, tuple[int, ...]], Record] = {}
        for r in self.records:
            asked = (r.op, r.dtype, r.layout, r.device, r.capability) == (op, dtype, layout, gpu.device, gpu.capability)
            if asked and (invariant or not r.variant):
                newest[":".join(filter(None, (r.backend, r.variant))), r.shape] = r
        timed: dict[str, dict[Sizes, Record]] = {}
        barred: dict[str, str] = {}
        refused: dict[str, dict[tuple[int, ...], str]] = {}
        for (backend, shape), r in sorted(newest.items(), key=lambda item: item[1].time):
            if _timed(r):
                timed.setdefault(backend, {})[OPS[op].sizes(shape)] = r
            elif r.status == "wrong":
                barred[backend] = f"wrong at {r.workload}: {r.reason}"
            elif r.status != "ok":
                refused.setdefault(backend, {})[shape] = f"{r.status}: {r.reason}"
        return Figures({b: cells for b, cells in timed.items() if b not in barred}, barred, refused)


class _Known:
    """What the newer runs of a device's folder say: how a cell's line begins -> its record."""

    def __init__(self, op: str, warm: bool = False) -> None:
        self.op, self.warm = op, warm
        self.cells: dict[str, Record] = {}
        self.timed = False  # is there a record that was timed? Then those of other ops are not needed

    def take(self, path: Path) -> None:
        """Adds what the next older run has beside them. Raises UnknownSchema or OSError, and adds nothing then."""
        fresh: dict[str, Record] = {}
        timed = self.timed

        def skipped(cell: str, line: str) -> bool:
            if timed and self.op and of_another_op(cell, self.op):
                return True
            known = fresh.get(cell) or self.cells.get(cell)
            return known is not None and not any(marker in line and not getattr(known, name) for name, (marker, _) in ASKED_FOR.items())

        for cell, record in read_newest(path, skipped):
            if _counts(record) and not (self.warm and _timed(record) and record.kernel_warm_us is None):
                known = fresh.get(cell) or self.cells.get(cell)
                fresh[cell] = _filled(known, record) if known else record
                timed = timed or _timed(record)
        self.cells |= fresh
        self.timed = timed


def _filled(newer: Record, older: Record) -> Record:
    """What the newer record was not asked for, from one of the same kernels; where those are not known to be the same, nothing."""
    if not newer.source or taken_by(newer) != taken_by(older):
        return newer
    lacking = (name for asked, (_, names) in ASKED_FOR.items() if not getattr(newer, asked) for name in names)
    return replace(newer, **{name: getattr(older, name) for name in lacking})


def taken_by(r: Record) -> tuple[object, ...]:
    """The conditions of a cell's figures except process, machine and day: kernels, GPU, driver, libraries."""
    libraries = {name: version for name, version in r.versions.items() if name not in UNTIMED_LIBRARIES}
    return r.source, r.tuned, r.device, r.capability, r.driver, libraries


def _counts(r: Record) -> bool:
    return r.variant in ("", INVARIANT) and r.stand_in is None and bool(r.capability) and r.status in JUDGED


def _timed(r: Record) -> bool:
    return r.status == "ok" and r.timed and r.call_us is not None


def stale(record: Record, here: Mapping[str, Any] | None) -> str:
    """Why a record may no longer hold, "" if nothing indicates it.

    `here`: driver and versions (`measure.device.facts`) of this machine, if it has the record's device."""
    reasons = [
        _sources_changed(record),
        _tables_changed(record, here),
        f"taken on a GPU shared with {record.shared}" if record.shared else "",
    ]
    if here is not None:
        if record.driver != str(here.get("driver") or ""):
            reasons.append(f"driver {record.driver} then, {here.get('driver')} now")
        now = here["versions"]
        names = sorted((record.versions.keys() | now.keys()) - set(UNTIMED_LIBRARIES))
        pairs = ((n, record.versions.get(n, "none"), now.get(n, "none")) for n in names)
        reasons += [f"{n} {then} then, {present} now" for n, then, present in pairs if then != present]
    return "; ".join(filter(None, reasons))


def _sources_changed(record: Record) -> str:
    if record.source:
        same = record.source == provenance.source(record.backend, record.op, record.tuned) or machine_code.unchanged(record)
        return "" if same else "its kernel's sources have changed since"
    changed = provenance.changed_since(record.commit) if not record.dirty else None
    if changed is None:
        return f"taken from sources that cannot be compared (commit {record.commit or 'unknown'})"
    files = provenance.sources(record.backend, record.op)
    return "" if files and changed.isdisjoint(files) else f"its kernel's sources have changed since commit {record.commit}"


def _tables_changed(record: Record, here: Mapping[str, Any] | None) -> str:
    """Where the record's device is: were other tables in force than now?"""
    if here is None:
        return ""
    from opwise.tuning.standing import in_force

    now = in_force(record.backend, record.op, {**here, "device": record.device, "capability": record.capability})
    if now == record.tuned:
        return ""
    return f"taken with {_tables(record.tuned)}, {_tables(now)} in force now"


def _tables(digest: str) -> str:
    return f"tuned tables {digest}" if digest else "the shipped tables"


def refresh(workloads: Iterable[Workload]) -> str:
    """The command that measures these workloads again."""
    return f"opwise run {' '.join(sorted({str(w) for w in workloads}))}"
