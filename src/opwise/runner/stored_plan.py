"""A run's arguments, as one line of its file, so that another process can finish it later.

The line has its own kind, which readers of cells skip, and a version: a plan of a later version is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opwise.record import SCHEMA, now, read_extra

VERSION = 1


class CannotResume(ValueError):
    """The run cannot be finished here; the message says why and what to do."""


@dataclass(frozen=True)
class StoredPlan:
    """The set, filters and switches of a run, and where it began. `own`: names of files, without their paths."""

    set_name: str
    filters: tuple[str, ...] = ()
    variants: bool = False
    timed: bool = True
    brief: bool = False
    own: tuple[str, ...] = ()
    device: str = ""
    commit: str = ""
    dirty: bool | None = None
    facts: bool = False
    energy: bool = False
    processes: int = 1  # that each job is carried out in

    def line(self) -> str:
        return json.dumps({"schema": SCHEMA, "kind": "plan", "plan": VERSION, "time": now(), **asdict(self)})

    @classmethod
    def read(cls, path: Path) -> StoredPlan:
        """Raises CannotResume, and OSError if the file cannot be read."""
        found = read_extra(path, "plan")
        if not found:
            raise CannotResume(f"{path} holds no plan, it was written by an opwise that stored none: measure again with opwise run")
        data = found[0]
        if data.get("plan") != VERSION:
            raise CannotResume(f"{path}: its plan has version {data.get('plan')!r}, {VERSION} is taken: use the opwise that wrote it")
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        try:
            return cls(**known | {name: tuple(known.get(name, ())) for name in ("filters", "own")})
        except TypeError as error:
            raise CannotResume(f"{path}: its plan is damaged ({error}): measure again with opwise run") from error

    def check(self, path: Path, facts: Mapping[str, Any], own: tuple[str, ...]) -> None:
        """Raises CannotResume if the rest would not be measured under the same conditions: another device model, commit or files."""
        if facts["device"] != self.device:
            raise CannotResume(f"{path} was begun on {self.device}, here is {facts['device']}: resume it on the same model")
        if facts["commit"] != self.commit:
            then, now_ = self.commit or "no commit", facts["commit"] or "no commit"
            raise CannotResume(f"{path} was begun at {then}, here is {now_}: check that commit out, or measure again")
        if set(own) != set(self.own):
            given = f"given {' '.join(own)}" if own else "given none"
            raise CannotResume(f"{path} was begun with the files of --with {' '.join(self.own) or '(none)'}, {given}: give the same")
