"""A run of the experiments as one JSON file: results/<device>/<UTC time>-seeds-<commit>.json. Not .jsonl, which are runs of kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opwise import library
from opwise.measure.device import slug
from opwise.seeds.experiment import Outcome

SCHEMA = 1
KIND = "seeds"


class BadFile(ValueError):
    """A file is not a run of the experiments; the message says what it is."""


class NothingRecorded(LookupError):
    """No run is stored; the message says where it was looked for and how to make one."""


@dataclass(frozen=True)
class SeedRun:
    """`facts`: device, driver, capability, versions, commit, dirty. `seconds`: wall time of all together."""

    facts: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]
    time: str = ""
    seconds: float = 0.0
    path: Path | None = field(default=None, compare=False)

    @property
    def device(self) -> str:
        return str(self.facts.get("device", "unknown"))

    @property
    def gpu(self) -> bool:
        return self.device != "cpu"

    def as_data(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "kind": KIND, **self.facts, "time": self.time, "seconds": round(self.seconds, 1),
                "outcomes": [outcome.as_data() for outcome in self.outcomes]}  # fmt: skip


def made(facts: Mapping[str, Any], outcomes: Sequence[Outcome], seconds: float) -> SeedRun:
    return SeedRun(dict(facts), tuple(outcomes), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S+00:00"), seconds)


def path_of(run: SeedRun, where: Path) -> Path:
    """`where`, or a name for the run in it if it is a folder or has no suffix."""
    if where.suffix and not where.is_dir():
        return where
    stamp = run.time.replace("-", "").replace(":", "").removesuffix("+0000") + "Z"
    return where / slug(run.facts) / f"{stamp}-{KIND}-{run.facts.get('commit') or 'nocommit'}.json"


def write(run: SeedRun, where: Path) -> Path:
    """Writes the run and returns its path (path_of). A reader sees the old run or the new one, never half of it."""
    path = path_of(run, where)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(json.dumps(run.as_data(), indent=1) + "\n", encoding="utf-8")
    return fresh.replace(path)


def read(path: Path) -> SeedRun:
    """Raises BadFile, and OSError where it cannot be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise BadFile(f"{path} is no JSON ({error}): give a file that opwise seeds -o wrote") from error
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise BadFile(f"{path} holds no run of the experiments: give a file that opwise seeds -o wrote")
    if data.get("schema") != SCHEMA:
        raise BadFile(f"{path}: schema {data.get('schema')!r} found, {SCHEMA} is read: use the opwise that wrote the file")
    facts = {key: value for key, value in data.items() if key not in ("schema", "kind", "time", "seconds", "outcomes")}
    return SeedRun(facts, tuple(map(Outcome.from_data, data["outcomes"])), data.get("time", ""), data.get("seconds", 0.0), path)


def recorded(folders: Sequence[Path] = ()) -> SeedRun:
    """The newest run of a GPU in these folders and among those that ship with opwise. Raises NothingRecorded, BadFile."""
    places = list(dict.fromkeys((*folders, library.shipped())))
    paths = {
        path.resolve(): path for place in places for path in place.glob(f"*/*-{KIND}-*.json") if not path.parent.name.startswith("cpu")
    }
    if not paths:
        raise NothingRecorded(f"no run of the experiments is stored under {' or '.join(map(str, places))}: on a GPU, "
                              "`opwise seeds -o results` makes one")  # fmt: skip
    return read(max(paths.values(), key=lambda path: path.name))
