"""Runs the block on this machine: picks the candidates, starts one worker for all, and another if it is lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opwise.block.records import BASELINE, BlockRecord
from opwise.block.sizes import Sizes
from opwise.block.turns import Pace
from opwise.block.wiring import OPS_INSIDE
from opwise.block.working import Candidate, Request, carried_out
from opwise.record import now
from opwise.runner.jobs import Entry
from opwise.runner.supervisor import Patience, Worker, WorkerLost
from opwise.runner.survey import Survey


def candidates(found: Survey, backends: Sequence[str], ops: Sequence[str]) -> tuple[list[Candidate], dict[str, dict[str, Any]]]:
    """The candidates, the baseline always first; and for excluded backends the reason, as fields of their records.

    backends, ops: empty for all."""
    wanted = [name for name in OPS_INSIDE if not ops or name in ops]
    taking: list[Candidate] = []
    absent: dict[str, dict[str, Any]] = {}
    for name, entry in found.catalogue.items():
        if backends and name not in (*backends, BASELINE):
            continue
        own = tuple(op for op in wanted if "" in entry.variants.get(op, {}))
        if reason := _missing(entry):
            absent[name] = {"status": entry.broken or "unavailable", "reason": reason}
        elif own or name == BASELINE:
            taking.append(Candidate(name, own))
        else:
            absent[name] = {"status": "unsupported", "reason": f"has none of {', '.join(wanted)}"}
    return sorted(taking, key=lambda c: c.backend != BASELINE), absent


def _missing(entry: Entry) -> str:
    return "" if entry.available else ": ".join(filter(None, (entry.reason, entry.remedy)))


def run(
    found: Survey, sizes: Sizes, pace: Pace, *, backends: Sequence[str] = (), ops: Sequence[str] = (), shared: str = "",
    progress: Callable[[str, str], None] = lambda name, phase: None, patience: Patience | None = None,
) -> list[BlockRecord]:  # fmt: skip
    """A record of each backend, in the catalogue's order. All candidates run in one worker, since they take turns. If the worker is lost,
    the candidate to blame is left out and the others start again. Raises WorkerLost if none is to blame."""
    taking, absent = candidates(found, backends, ops)
    asked = {c.backend: c.ops for c in taking}
    seed = int.from_bytes(os.urandom(4), "little") >> 1
    done: Mapping[str, dict[str, Any]] = {}
    while taking:
        request = Request(sizes, tuple(taking), found.device, pace, seed)
        try:
            done = _answered(found, request, progress, patience or Patience())
            break
        except WorkerLost as lost:
            blamed = lost.turn[0]
            if blamed not in {c.backend for c in taking}:
                raise
            absent[blamed] = {"status": "timeout" if lost.timed_out else "failed", "reason": lost.reason}
            taking = [c for c in taking if c.backend != blamed]
    shape = {"model": sizes.model, "tokens": sizes.tokens, "hidden": sizes.hidden, "ff": sizes.ff, "heads": sizes.heads}
    common: dict[str, Any] = {**shape, **found.facts, "seed": seed, "shared": shared, "time": now()}
    fields = {**done, **absent}
    return [BlockRecord(backend=name, ops=asked.get(name, ()), **common, **fields[name]) for name in found.catalogue if name in fields]


def _answered(found: Survey, request: Request, progress: Callable[[str, str], None], patience: Patience) -> dict[str, dict[str, Any]]:
    answer: dict[str, dict[str, Any]] = {}
    with Worker(found.device, found.setup, dict(found.environment)) as worker:
        for said, what in worker.messages("apply", (carried_out, request), patience):
            if said == "turn":
                progress(*what)
            else:
                answer = what
    return answer
