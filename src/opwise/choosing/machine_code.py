"""Tells whether a stored figure's kernels are unchanged in machine code, although their sources differ.

The history (results/history/<gpu>/<commit>.json.gz, by benchmarks/_carried.py) has, for each commit's cells, a digest of the sources and
one of the machine code that a launch ran. Two sources are alike at a shape if they gave the same machine code there, by the same torch and
driver. This says nothing about call costs on the CPU."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from functools import cache

from opwise import library, provenance
from opwise.measure.device import slug
from opwise.record import Record
from opwise.run_files import text

Cell = tuple[str, str, str]  # op/backend/shape/dtype, torch, driver
Codes = Mapping[Cell, Mapping[str, set[str]]]  # -> digest of sources -> of machine code: of several, one holds what differs by process


def unchanged(record: Record) -> bool:
    """Returns whether the history of the record's GPU shows the same machine code for its sources and today's at its shape; False if
    unknown."""
    if record.tuned or record.layout or record.variant:
        return False
    name = "/".join((record.op, record.backend, "x".join(map(str, record.shape)), record.dtype))
    by_source = codes(record.device).get((name, record.versions.get("torch", ""), record.driver), {})
    then, now = (by_source.get(source, set()) for source in (record.source, provenance.source(record.backend, record.op)))
    return then == now and len(now) == 1


@cache
def codes(device: str) -> Codes:
    """The machine-code digests of a GPU's history; empty if there is none."""
    found: dict[Cell, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in sorted((library.shipped() / "history" / slug({"device": device})).glob("*.json.gz")):
        commit = json.loads(text(path))
        by = commit["versions"].get("torch", ""), commit["versions"].get("driver", "")
        for name, cell in commit["cells"].items():
            if cell["code"]:
                found[name, *by][cell["source"]].add(cell["code"])
    return found
