"""Tables of the fastest configurations on one GPU, as `opwise tune` stores them, and the conditions under which one may be used.

A table is one JSON file, <folder>/<device>/<table's name>.json, written atomically. It holds every configuration's time for each measured
workload, and a rule for other workloads. It is valid only for the device, driver, compiler and kernel sources that it was measured with.
Reading one needs no GPU.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from opwise.measure.device import slug

SCHEMA = 2
VARIABLE, OFF = "OPWISE_TUNED", "off"


@dataclass(frozen=True)
class Tunable:
    """A table that can be measured. Its name is <folder under backends/ that has the kernels' sources>/<op>.

    serves: the backends that read it, first the one to measure through, which compiles fastest. libraries: the compilers, named as in
    `measure.device.DISTRIBUTIONS`. ways: "module:class", a `tuning.ways.Ways`, which knows the configurations; imported only to measure.
    """

    name: str
    serves: tuple[str, ...]
    libraries: tuple[str, ...]
    ways: str

    @property
    def op(self) -> str:
        return self.name.partition("/")[2]

    @property
    def source(self) -> str:
        """The digest of the sources of the kernels and of their plans."""
        from opwise import provenance  # late: it imports this package

        return provenance.folder_source(*self.name.split("/"))


TUNABLE: Mapping[str, Tunable] = {
    t.name: t
    for t in (
        Tunable("triton_jit/matmul", ("triton_jit",), ("triton",), "opwise.tuning.matmul:MatmulWays"),
        Tunable("cuda_src/matmul", ("cupy_raw", "torch_inline"), ("nvrtc",), "opwise.tuning.matmul:MatmulWays"),
        Tunable("triton_jit/mean", ("triton_jit",), ("triton",), "opwise.tuning.triton_mean:TritonMean"),
        Tunable("numba_cuda/matmul", ("numba_cuda",), ("numba-cuda",), "opwise.tuning.matmul:MatmulWays"),
        Tunable("cuda_src/softmax", ("cupy_raw", "torch_inline"), ("nvrtc",), "opwise.tuning.softmax:CudaSoftmax"),
        Tunable("triton_jit/softmax", ("triton_jit",), ("triton",), "opwise.tuning.triton_softmax:TritonSoftmax"),
        Tunable("numba_cuda/softmax", ("numba_cuda",), ("numba-cuda",), "opwise.tuning.softmax:NumbaSoftmax"),
    )
}


def tunables(ops: Collection[str] = (), backend: str | None = None) -> list[Tunable]:
    """The tables of these ops (default: all) that a backend (default: any) reads, in the order of TUNABLE."""
    return [t for t in TUNABLE.values() if (not ops or t.op in ops) and (backend is None or backend in t.serves)]


class TornTable(ValueError):
    """The file is not a complete table of this schema; the message says which file and why."""


@dataclass(frozen=True)
class Time:
    """Cold kernel time of one launch, us: median and 95 % interval. error_ratio: the largest error divided by its bound, at most 1."""

    us: float
    low: float
    high: float
    error_ratio: float = 0.0


@dataclass(frozen=True)
class Row:
    """One workload. sizes: from OpSpec.sizes. times: of every correct configuration, measured interleaved. refused: the others, and why.
    shipped: the shipped choice. chosen: the shipped one, unless another is faster by 1 % and by more than its interval."""

    workload: str
    sizes: tuple[int, ...]
    chosen: str
    shipped: str
    times: Mapping[str, Time]
    refused: Mapping[str, str] = field(default_factory=dict)
    sm_clock_mhz: float | None = None
    gpu: str = ""  # the beginning of its UUID
    time: str = ""  # UTC, ISO 8601

    @property
    def dtype(self) -> str:
        return self.workload.rpartition("/")[2]

    @property
    def gain(self) -> float:
        """The shipped choice's time divided by the chosen one's."""
        return self.times[self.shipped].us / self.times[self.chosen].us

    def loss(self, name: str) -> float:
        """Its time divided by the fastest one's."""
        return self.times[name].us / min(t.us for t in self.times.values())


@dataclass(frozen=True)
class Elsewhere:
    """The choice for a dtype's workloads of sizes that were not measured.

    rule: "nearest": the choice of the nearest measured sizes; "shipped": the shipped choice. loss, shipped_loss: time of either divided by
    the fastest's, geometric mean over the measured workloads, each left out in turn.
    """

    rule: str = "shipped"
    loss: float | None = None
    shipped_loss: float | None = None


@dataclass(frozen=True)
class Table:
    name: str
    device: str
    capability: str
    driver: str
    versions: Mapping[str, str]  # of the tunable's libraries, "none" where one has no version
    source: str
    through: str = ""  # the backend it was measured through
    commit: str = ""
    dirty: bool | None = None
    rows: tuple[Row, ...] = ()
    elsewhere: Mapping[str, Elsewhere] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """The digest of all that decides which kernel runs: two tables with the same digest give the same launches."""
        rules = {dtype: e.rule for dtype, e in sorted(self.elsewhere.items()) if e.rule != "shipped"}
        chosen = sorted((row.workload, row.chosen) for row in self.rows)
        return hashlib.sha256(json.dumps((self.name, chosen, rules), sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def by_sizes(self) -> Mapping[tuple[str, tuple[int, ...]], Row]:
        return {(row.dtype, row.sizes): row for row in self.rows}

    def with_row(self, row: Row) -> Table:
        """This table with the row added, or replaced if it has one for that workload."""
        kept = [r for r in self.rows if r.workload != row.workload]
        return replace(self, rows=tuple(sorted([*kept, row], key=lambda r: (r.dtype, r.sizes))))


def digest_of(tables: Iterable[Table | None]) -> str:
    """The digests of the tables in use, joined by "-", as in records; "" if there are none."""
    return "-".join(table.digest for table in tables if table is not None)


def misfit(table: Table, facts: Mapping[str, Any]) -> str:
    """Why a table must not be used with these facts (device, capability, driver, versions, as in records); "" if it may be."""
    known = TUNABLE.get(table.name)
    if known is None:
        return f"this opwise has no table {table.name}"
    versions = versions_of(known, facts)
    pairs = [
        ("device", table.device, facts["device"]),
        ("compute capability", table.capability, facts.get("capability")),
        ("driver", table.driver, facts.get("driver")),
        *((name, table.versions.get(name, "none"), version) for name, version in versions.items()),
    ]
    different = [f"{what} {then} then, {now or 'none'} now" for what, then, now in pairs if then != (now or "")]
    if table.source != known.source:
        different.append("the kernels' sources have changed since")
    return "; ".join(different)


def versions_of(known: Tunable, facts: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(facts["versions"].get(name, "none")) for name in known.libraries}


# -- files -------------------------------------------------------------------------------------------------------------------


def folder() -> Path | None:
    """The folder of this user's tables: OPWISE_TUNED, else XDG_DATA_HOME/opwise/tuned, else ~/.local/share/opwise/tuned. None if
    OPWISE_TUNED is "off": then only the shipped choices are used."""
    given = os.environ.get(VARIABLE, "")
    if given:
        return None if given == OFF else Path(given)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "opwise" / "tuned"


def path_of(root: Path, name: str, device: str) -> Path:
    return root / slug({"device": device}) / f"{name.replace('/', '-')}.json"


def existing(name: str, device: str) -> Path | None:
    """The stored table's file; None if there is none or OPWISE_TUNED is "off"."""
    root = folder()
    path = path_of(root, name, device) if root is not None else None
    return path if path is not None and path.is_file() else None


def write(table: Table, root: Path) -> Path:
    """Writes the table's file atomically and returns its path."""
    path = path_of(root, table.name, table.device)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
        json.dump({"schema": SCHEMA, **asdict(table)}, file, indent=1)
    Path(file.name).replace(path)
    return path


def read(path: Path) -> Table:
    """The table of a file. Raises TornTable if it is not complete, OSError if it cannot be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.pop("schema", None) != SCHEMA:
            raise ValueError(f"it is not of schema {SCHEMA}")
        rows = tuple(_row(row) for row in data.pop("rows"))
        elsewhere = {dtype: Elsewhere(**rule) for dtype, rule in data.pop("elsewhere").items()}
        return Table(**data, rows=rows, elsewhere=elsewhere)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TornTable(f"{path} is no whole table ({error}): opwise tune makes it anew, opwise tune --reset removes it") from error


def _row(data: dict[str, Any]) -> Row:
    row = Row(**{**data, "sizes": tuple(data["sizes"]), "times": {name: Time(**t) for name, t in data["times"].items()}})
    if not {row.chosen, row.shipped} <= row.times.keys():
        raise ValueError(f"{row.workload} lacks the times of what it chose")
    return row
