"""One candidate's block as a line of a run's file, of the kind `block`: results/<device>/<UTC time>-block-<commit>.jsonl."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from opwise.block.sizes import Sizes
from opwise.block.wiring import SWAPPED
from opwise.fields import made, one_of
from opwise.measure.device import slug
from opwise.record import RATIO, SCHEMA, STATUSES, Interval, UnknownSchema, taken
from opwise.run_files import append, new_run, runs

KIND = "block"
BASELINE = "torch_eager"


@dataclass(frozen=True)
class Measured:
    """A block in one state of the clock. us of a block; over the block of torch alone; MHz; op -> share of the time, empty if unknown."""

    us: Interval | None
    versus_baseline: tuple[float, float, float] | None
    sm_clock_mhz: float | None
    shares: Mapping[str, float]


@dataclass(frozen=True)
class BlockRecord:
    """One candidate's result. Times in us, powers in W, energy of one block in J. Not measured: None. Times exist only if the output is
    right.

    `ops`: the ops that this backend computed in the block; torch computed the rest. `steps_us`: each step by itself, between events. Fields
    named full are of single blocks at full clock, the others of blocks back to back. Runs before 2026-11-28 lack the former."""

    backend: str
    ops: tuple[str, ...]
    model: str
    tokens: int
    hidden: int
    ff: int
    heads: int
    status: str = field(metadata={"take": one_of(STATUSES)})
    reason: str = ""
    stand_in: str | None = None
    error_ratio: float | None = field(default=None, metadata=RATIO)  # the largest over its bound, of all steps that are ops
    block_us: Interval | None = None
    versus_baseline: tuple[float, float, float] | None = None  # over the block of torch alone, paired, with its interval
    power_w: float | None = None
    joules: float | None = None
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()
    steps_us: Mapping[str, float] = field(default_factory=dict)
    full_us: Interval | None = None
    full_versus_baseline: tuple[float, float, float] | None = None
    full_sm_clock_mhz: float | None = None
    full_steps_us: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)  # op -> digest of the kernel's sources (provenance.source)
    seed: int | None = None
    device: str = ""
    driver: str = ""
    capability: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    dirty: bool | None = None
    gpu: str = ""
    shared: str = ""
    time: str = ""
    schema: int = SCHEMA
    kind: str = KIND

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.model, self.hidden, self.ff, self.heads, self.tokens)

    @property
    def shares(self) -> dict[str, float]:
        """Each op's share of the block's time; `other` is what torch computes in every candidate. They add up to 1; empty if unknown."""
        return shares(self.steps_us)

    def measured(self, full: bool) -> Measured:
        """full: of single blocks at full clock, otherwise of blocks back to back."""
        if full:
            return Measured(self.full_us, self.full_versus_baseline, self.full_sm_clock_mhz, shares(self.full_steps_us))
        return Measured(self.block_us, self.versus_baseline, self.sm_clock_mhz, self.shares)

    def to_json(self) -> str:
        """One line without its newline, the shares beside the steps."""
        data = asdict(self) | {"shares": self.shares}
        for name in ("block_us", "full_us"):
            if data[name] is not None:
                del data[name]["rounds"]
        if self.error_ratio is not None and not math.isfinite(self.error_ratio):
            data["error_ratio"] = str(self.error_ratio)
        return json.dumps(data, allow_nan=False)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> BlockRecord:
        """Raises UnknownSchema if a newer opwise wrote the line, WrongField for an invalid field."""
        if not isinstance(data.get("schema"), int) or not 0 < data["schema"] <= SCHEMA:
            raise UnknownSchema(f"schema {data.get('schema')!r} found, up to {SCHEMA} is read: use the opwise that wrote the file")
        return made(cls, data)


def shares(steps_us: Mapping[str, float]) -> dict[str, float]:
    """Op -> its share of these steps' time; `other`: steps that are none of the ops. Empty for no steps."""
    total = sum(steps_us.values())
    found: dict[str, float] = dict.fromkeys((*(step.op for step in SWAPPED.values()), "other"), 0.0)
    for name, us in steps_us.items():
        found[SWAPPED[name].op if name in SWAPPED else "other"] += us / total
    return found if total else {}


def store(records: Sequence[BlockRecord], out: Path) -> Path:
    """Writes a new file by one write, so that a run is complete or absent."""
    path = new_run(out, slug({"device": records[0].device}), KIND, records[0].commit)
    append(path, ["\n".join(record.to_json() for record in records)])
    return path


def read_blocks(path: Path) -> list[BlockRecord]:
    """The block lines of a run. Raises UnknownSchema, and OSError where it cannot be read."""
    return taken(path, KIND, BlockRecord.from_data)


def newest_beside(path: Path) -> list[list[BlockRecord]]:
    """The block runs in the folder of a run, which is its device's: the newest for each block and set of ops swapped, newest first."""
    found: dict[tuple[object, ...], list[BlockRecord]] = {}
    beside = (p for p in runs(path.parent.parent, path.parent.name) if p.parent == path.parent and f"-{KIND}-" in p.name)
    for run in reversed(list(beside)):
        if records := read_blocks(run):
            found.setdefault((records[0].sizes, *sorted({op for r in records for op in r.ops})), records)
    return list(found.values())
