"""One measured cell, and the other lines of a run's file (run_files.py). Unknown schemas are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from opwise.fields import WrongField, made, number, one_of, or_none
from opwise.ops import spec
from opwise.ops.spec import DTYPES, Workload
from opwise.run_files import lines, parsed, skipping

SCHEMA = 2
READ = (1, 2)
LAYOUTS: tuple[str, ...] = getattr(spec, "LAYOUTS", ("",))  # asv puts this file beside old commits' spec, which has none
FULL, CAPPED = STATES = ("full", "capped")  # of the clock: as high as it goes, and as the power cap leaves it under launches back to back
STATUSES = ("ok", "wrong", "unsupported", "unavailable", "failed", "timeout")
BAD = ("wrong", "failed", "timeout")  # a kernel that ran, or should have
T = TypeVar("T")
RATIO = {"take": or_none(number(finite=False))}  # an error that has no end is one


def now() -> str:
    """The time of a record made now: UTC, to the second, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class UnknownSchema(ValueError):
    """The file was written by another version of opwise."""


@dataclass(frozen=True)
class Interval:
    """A median with its bootstrap 95 % interval, in the unit of its field. In a record of several processes: the median of their medians,
    from the least end of their intervals to the greatest.

    `rounds` are the blocks' medians in the order they were taken. They are not stored."""

    median: float
    low: float
    high: float
    samples: int
    method: str = ""
    converged: bool = True
    note: str = ""
    rounds: tuple[float, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Record:
    """One implementation at one workload on one device in one run. Times are in the unit that ends the field's name.

    A time exists only beside the verdict on the buffers that were timed. Values that were not measured are None, never 0.

    Cold kernel time has two states. At full clock it is `kernel_cold_us`, with `versus_best`, `limit_us`, `sol`, the rates and the SM
    clock; `rest_us` is the pause after each launch that keeps the clock at its highest. Power-capped, with launches back to back, it is
    `kernel_capped_us`, with the fields that begin with `capped_`; None if the cap changes nothing. Records of schema 1 have one state:
    times taken under the power cap are read as `kernel_capped_us`, with `kernel_cold_us` None."""

    op: str
    backend: str
    variant: str
    dtype: str = field(metadata={"take": one_of(tuple(DTYPES))})
    shape: tuple[int, ...]
    layout: str = field(default="", kw_only=True, metadata={"take": one_of(LAYOUTS)})  # as Workload has it; not in a line where it is ""
    status: str = field(metadata={"take": one_of(STATUSES)})
    reason: str = ""
    stand_in: str | None = None
    kernels: tuple[str, ...] = ()  # that the stand-in ran
    not_run: tuple[str, ...] = ()  # of a GPU's kernels, what the stand-in never runs: as `opwise check` tells it
    error_ratio: float | None = field(default=None, metadata=RATIO)  # largest error over its bound, of all checks of this cell
    repeatable: bool | None = None  # bitwise, over launches, streams and processes (measure/sameness.py); None: not found out
    batch_invariant: bool | None = None  # a row bitwise the same in any batch; None too where an op has no rows
    differs: str = ""  # the first difference, or why there is no answer
    bits: str = ""  # digest of the result on the inputs of sameness.SEED
    disagreement: float | None = field(default=None, metadata=RATIO)  # largest difference from another implementation, over twice the bound
    kernel_cold_us: Interval | None = None
    kernel_warm_us: Interval | None = None
    launch_us: Interval | None = None
    call_us: Interval | None = None
    versus_best: tuple[float, float, float] | None = None  # cold time over the fastest one's, paired, with its interval
    rest_us: float | None = None  # behind each launch at full clock; None where none is needed
    kernel_capped_us: Interval | None = None
    capped_versus_best: tuple[float, float, float] | None = None
    capped_limit_us: float | None = None  # by the peak that cuBLAS holds under the power cap
    capped_sol: float | None = None
    capped_tflop_per_s: float | None = None
    capped_sm_clock_mhz: float | None = None
    capped_power_w: float | None = None
    capped_throttle: tuple[str, ...] = ()
    joules: float | None = None  # of a launch at full clock, gross: the idle power while it runs is in it (measure/energy.py)
    capped_joules: float | None = None  # back to back; None where the cap changes nothing
    idle_w: float | None = None  # what the GPU draws with nothing to do
    energy_note: str = ""  # why there are no joules
    compile_cold_s: float | None = None
    compile_cached_s: float | None = None
    prepare_s: float | None = None
    extra_bytes: int | None = None
    limit_us: float | None = None
    sol: float | None = None
    gb_per_s: float | None = None
    tflop_per_s: float | None = None
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle: tuple[str, ...] = ()
    seed: int | None = None
    device: str = ""
    driver: str = ""
    capability: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    dirty: bool | None = None
    source: str = ""  # digest of the kernel's sources (provenance.source); "" in records from before there was one
    tuned: str = ""  # digest of the tuned tables in force (provenance.tables), which `source` covers too; "": the shipped ones
    gpu: str = ""  # which of several: the beginning of its UUID
    shared: str = ""  # who else computed on this GPU, where --share let that be; "" is a GPU of one's own
    time: str = ""
    processes: int = 1  # of how many this is made (runner/processes.py); the two below, and all three in a line, where it is more than one
    us_by_process: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)  # cold medians, by state of the clock
    versus_by_process: Mapping[str, tuple[tuple[float, float, float] | None, ...]] = field(default_factory=dict)  # to each one's fastest
    schema: int = SCHEMA
    kind: str = "cell"

    @classmethod
    def of(cls, implementation: str, workload: Workload, **fields: Any) -> Record:
        """The record of an implementation, by its name, at a workload."""
        backend, _, rest = implementation.partition("/")
        variant = rest.partition(":")[2]
        layout = getattr(workload, "layout", "")  # an old commit's, which asv measures, has none
        fields |= {"op": workload.op, "dtype": workload.dtype, "shape": workload.shape, "layout": layout}
        return cls(backend=backend, variant=variant, **fields)

    @property
    def implementation(self) -> str:
        return f"{self.backend}/{self.op}" + (f":{self.variant}" if self.variant else "")

    @property
    def workload(self) -> Workload:
        return Workload(self.op, self.shape, self.dtype, self.layout)

    def kernel_us(self, state: str) -> Interval | None:
        """Cold kernel time in one of STATES; None if not measured in that state."""
        return self.kernel_cold_us if state == FULL else self.kernel_capped_us or self.kernel_cold_us

    def versus(self, state: str) -> tuple[float, float, float] | None:
        """The paired ratio to the fastest in one of STATES."""
        return self.versus_best if state == FULL or self.kernel_capped_us is None else self.capped_versus_best

    def energy_j(self, state: str) -> float | None:
        """Joules of a launch in one of STATES; None if not measured in that state."""
        return self.joules if state == FULL or self.capped_joules is None else self.capped_joules

    @property
    def energised(self) -> bool:
        """Returns whether it has joules in any state."""
        return self.joules is not None or self.capped_joules is not None

    @property
    def timed(self) -> bool:
        """Returns whether it has a cold kernel time in any state."""
        return self.kernel_cold_us is not None or self.kernel_capped_us is not None

    def to_json(self) -> str:
        """One line without its newline. NaN and infinity are not JSON: an infinite error ratio is written as the string "inf"."""
        data = asdict(self)
        asked = {"layout": bool(self.layout), **dict.fromkeys(FACTS, bool(self.bits or self.differs))}
        asked |= dict.fromkeys(ENERGY, self.energised or bool(self.energy_note))
        asked |= dict.fromkeys(PROCESSES, self.processes > 1)
        for name in (name for name, there in asked.items() if not there):
            del data[name]
        for name in _INTERVALS:
            if data[name] is not None:
                del data[name]["rounds"]
        return json.dumps({name: plain(value) for name, value in data.items()}, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Record:
        """Raises json.JSONDecodeError on a torn line, and as from_data. Unknown fields are dropped."""
        return cls.from_data(json.loads(line))

    @classmethod
    def from_data(cls, data: Any) -> Record:
        """The record of a parsed line. Raises UnknownSchema on another schema, WrongField for an invalid field."""
        if not isinstance(data, dict) or type(data.get("schema")) is not int or data["schema"] not in READ:
            found = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise UnknownSchema(f"schema {found!r} found, {' and '.join(map(str, READ))} are read: use the opwise that wrote the file")
        if data["schema"] == 1:
            data = _of_schema_1(data)
        return made(cls, data)


_BEFORE_OP = '{"op": '
_BEHIND_CELL = '"status": '  # the field that follows those which say what was measured
FACTS = ("repeatable", "batch_invariant", "differs", "bits")  # not in a line where nobody asked
ENERGY = ("joules", "capped_joules", "idle_w", "energy_note")  # nor these
PROCESSES = ("processes", "us_by_process", "versus_by_process")
_INTERVALS = ("kernel_cold_us", "kernel_capped_us", "kernel_warm_us", "launch_us", "call_us")


# What schema 1 had of a cold time, and where that of a power-capped one is now. Its limit was made of a peak at full clock, which is no
# limit of this state, and goes with what is made of it.
_MOVED = {"kernel_cold_us": "kernel_capped_us", "versus_best": "capped_versus_best", "tflop_per_s": "capped_tflop_per_s",
          "sm_clock_mhz": "capped_sm_clock_mhz", "power_w": "capped_power_w", "throttle": "capped_throttle"}  # fmt: skip
_GONE = ("limit_us", "sol", "gb_per_s")


def _of_schema_1(data: Mapping[str, Any]) -> dict[str, Any]:
    """Launches were back to back: a product during which the power cap held was timed in that state alone."""
    throttle = data.get("throttle")
    if not isinstance(throttle, list) or "power cap" not in throttle or data.get("op") != "matmul":
        return {**data, "schema": SCHEMA}
    moved = {_MOVED.get(name, name): value for name, value in data.items() if name not in _GONE}
    return {**moved, "schema": SCHEMA}


def plain(value: Any) -> Any:
    """JSON-compatible values: NaN and infinity as strings, tuples as lists."""
    if isinstance(value, float) and value != value:
        return "nan"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, tuple) else value


def read(path: Path) -> list[Record]:
    """The cells of a run, in the order they were measured. A torn line, as left by a kill or a full disk, and a line with an invalid field
    are skipped with a warning. Raises UnknownSchema, and OSError if the file cannot be read."""
    return taken(path, "cell", Record.from_data)


def taken(path: Path, kind: str, from_data: Callable[[Any], T]) -> list[T]:
    """The lines of a kind in a run, read like `read`; other exceptions of `from_data` propagate."""
    held = ((number, data) for number, line in lines(path) for data in parsed(path, number, line))
    return [found for number, data in held for found in _taken(path, number, data, kind, from_data)]


def read_newest(path: Path, skipped: Callable[[str, str], bool]) -> Iterator[tuple[str, Record]]:
    """The cells of a run, the last one first, each with the beginning of its line: op, backend, variant, dtype and shape.

    Lines for which `skipped(beginning, line)` is true are not parsed, since parsing takes most of the time; it is called after the cells
    behind the line have been yielded. Warns and raises as `read`."""
    told = ((number, line, line.partition(_BEHIND_CELL)[0]) for number, line in reversed(lines(path)))
    found = ((number, cell, data) for number, line, cell in told if not skipped(cell, line) for data in parsed(path, number, line))
    return ((cell, record) for number, cell, data in found for record in _taken(path, number, data, "cell", Record.from_data))


def _taken(path: Path, number: int, data: Any, kind: str, from_data: Callable[[Any], T]) -> Iterator[T]:
    """What a line holds; nothing of a line of another kind, and a warning where a field is wrong."""
    try:
        if _kind(data) == kind:
            yield from_data(data)
    except UnknownSchema as unknown:
        raise UnknownSchema(f"{path}:{number}: {unknown}") from None
    except WrongField as wrong:
        skipping(path, number, wrong)


def beginning(record: Record) -> str:
    """The beginning of this cell's line, as read_newest gives it."""
    return record.to_json().partition(_BEHIND_CELL)[0]


def of_another_op(cell: str, op: str) -> bool:
    """Returns whether a line with this beginning holds a cell of another op."""
    return cell.startswith(_BEFORE_OP) and not cell.startswith(f'{_BEFORE_OP}"{op}"')


def read_extra(path: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of another kind in a run; kind `limits` holds the roofs measured with it."""
    return [data for number, line in lines(path) for data in parsed(path, number, line) if _kind(data) == kind]


def _kind(data: Any) -> str:
    return str(data.get("kind", "cell")) if isinstance(data, dict) else "cell"
