"""A table of choices: workload -> backend, for one GPU model. `opwise choose --recorded … --write` writes it, OPWISE_CHOICES names it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from opwise.backends import BACKENDS
from opwise.ops.spec import Workload

SCHEMA = 1
VARIABLE = "OPWISE_CHOICES"


class BadTable(ValueError):
    """A file is not a table of choices; the message says how to write one."""


def write_table(path: Path, device: str, choices: Mapping[Workload, str]) -> None:
    """Raises OSError."""
    named = {str(workload): backend for workload, backend in sorted(choices.items())}
    path.write_text(json.dumps({"schema": SCHEMA, "device": device, "choices": named}, indent=1) + "\n", encoding="utf-8")


def read_table(path: Path) -> tuple[str, Mapping[str, str]]:
    """(the GPU's name, workload -> backend). Raises BadTable, and OSError where the file cannot be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        schema, device = data["schema"], str(data["device"])
        choices = {str(Workload.parse(workload)): str(backend) for workload, backend in data["choices"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise BadTable(f"{path} is no table of choices ({why}): `opwise choose --recorded FILE --write {path}` makes one") from error
    if schema != SCHEMA:
        raise BadTable(f"{path} has schema {schema}, this opwise reads {SCHEMA}: write it again")
    if unknown := set(choices.values()) - BACKENDS.keys():
        raise BadTable(f"{path} names {', '.join(sorted(unknown))}, no backend: known are {', '.join(BACKENDS)}")
    return device, choices
