"""`opwise verify`: random workloads for a time, what fails made small, and the command that shows it again."""

from __future__ import annotations

import importlib.util
import json
import random
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.status import Status

from opwise.backends import BACKENDS
from opwise.commands.check import Backends, Dtypes
from opwise.commands.console import Device, With, chosen_device, fail, known, refuse, stderr, stdout, surveyed
from opwise.commands.stand_ins import stand_in_lines
from opwise.ops import OPS
from opwise.ops.spec import DTYPES
from opwise.record import plain
from opwise.runner import Patience, WorkerLost
from opwise.runner.seat import Seat
from opwise.runner.survey import Survey
from opwise.verifying.case import Case
from opwise.verifying.search import Failure, Search, op_of
from opwise.verifying.trial import Outcome, tried

EXAMPLES = (
    "Examples:  opwise verify  ·  opwise verify --op softmax --seconds 600  ·  opwise verify --with my_softmax.py --backend my_softmax  ·  "
    "opwise verify --again 'matmul/33x17x5/bfloat16/offset=1/seed=7' --backend numba_cuda"
)
PATIENCE = Patience(turn_s=60.0)
Ops = Annotated[list[str] | None, typer.Option("--op", help=f"Only this one; may be repeated. Known: {', '.join(OPS)}.")]


def verify(
    seconds: Annotated[float, typer.Option(min=0.0, help="How long to search, before failures are minimised.")] = 60.0,
    op: Ops = None,
    backend: Backends = None,
    dtype: Dtypes = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the search: the same cases in the same order. Default: random.")] = None,
    again: Annotated[str | None, typer.Option("--again", metavar="CASE", help="Only this case, as a failure prints it.")] = None,
    device: Device = None,
    own_files: With = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Machine-readable: an object a failure (with --again: an outcome), then one of the whole.")
    ] = False,
) -> None:
    """Check random workloads in all backends against the float64 reference and each other: shapes, dtypes, unaligned storage, hard values.

    A failing case is minimised, and printed with the command that repeats it. Without a GPU the stand-ins run small workloads. Exit status
    1 where something failed.
    """
    known("--op", op, tuple(OPS))
    known("--backend", backend, (*BACKENDS, *(path.stem for path in own_files or ())))
    known("--dtype", dtype, DTYPES)
    if again is not None and (op or dtype or seed is not None):
        refuse("--again names op, dtype and seed itself: leave --op, --dtype and --seed out")
    case = _parsed(again) if again is not None else None
    if case is None and importlib.util.find_spec("hypothesis") is None:
        fail("the search needs hypothesis, which is not installed: pip install hypothesis (`opwise check` works without it)")
    found = surveyed(chosen_device(device), own_files)
    rooms = _rooms(found, [case.workload.op] if case else op or list(OPS), backend, dtype)
    seat = Seat(found.device, setup=found.setup, patience=PATIENCE, environment=found.environment)
    command = _Command(device, own_files or [])
    try:
        if case is not None:
            _once(case, Trial(seat)(case, list(rooms)), as_json)
            return
        _search(Search(Trial(seat), rooms, dtype or (), random.randrange(10**6) if seed is None else seed), seconds, command, as_json)
    except WorkerLost as lost:
        fail(f"this machine cannot be verified: {lost.reason}")
    finally:
        seat.kill()


def _parsed(text: str) -> Case:
    try:
        return Case.parse(text)
    except ValueError as error:
        refuse(f"--again {error}")


def _rooms(found: Survey, ops: Sequence[str], backends: list[str] | None, dtypes: list[str] | None) -> dict[str, str]:
    """Implementation -> what runs it: the unnamed variants, and all of a user's own file."""
    rooms: dict[str, str] = {}
    for name, entry in found.catalogue.items():
        if backends and name not in backends:
            if entry.own:
                refuse(f"--with {found.own[name]}: --backend leaves it out: add --backend {name}, or leave --with out")
            continue
        if not entry.available:
            told = f"{name} cannot run here: {entry.reason}" + (f": {entry.remedy}" if entry.remedy else "")
            if backends or entry.own:  # asked for by name
                fail(told)
            stderr.print(told, style="yellow", highlight=False, markup=False, soft_wrap=True)
            continue
        variants = [f"{name}/{op}" + (f":{v}" if v else "") for op in ops for v in entry.variants.get(op, ()) if not v or entry.own]
        variants = [variant for variant in variants if variant not in entry.faults]
        if entry.own and not variants:
            held = ", ".join(f"{name}/{op}" for op in entry.variants)
            refuse(f"--with {found.own[name]}: it holds {held}, and none of {', '.join(ops)} is among them: add --op, or leave --with out")
        rooms |= dict.fromkeys(variants, entry.stand_in or "")
    fitting = {name: room for name, room in rooms.items() if not dtypes or set(dtypes) & set(OPS[op_of(name)].dtypes)}
    if not fitting:
        refuse(f"nothing fits {', '.join([*ops, *(backends or ()), *(dtypes or ())])}: another --op, --backend or --dtype may")
    return fitting


class Trial:
    """Runs cases in the worker of a seat. A worker lost in an implementation's turn is that implementation's failure."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat

    def __call__(self, case: Case, names: Sequence[str]) -> list[Outcome]:
        try:
            answers = self.seat.start().messages("apply", (tried, self.seat.device, case, names), PATIENCE)
            (outcomes,) = [what for said, what in answers if said == "answer"]
        except WorkerLost as lost:
            self.seat.kill()
            blamed = lost.turn[0]
            if blamed not in names:
                raise
            rest = [name for name in names if name != blamed]
            lost_one = Outcome(blamed, "timeout" if lost.timed_out else "failed", lost.reason)
            return [lost_one, *(self(case, rest) if rest else [])]
        return list(outcomes)


class _Command:
    """The command line that shows a failure again."""

    def __init__(self, device: str | None, files: Sequence[Path]) -> None:
        self.device, self.files = device, files

    def of(self, failure: Failure) -> str:
        backend = failure.outcome.implementation.partition("/")[0]
        words = ["opwise", "verify", "--again", str(failure.case), "--backend", backend]
        words += [word for path in self.files if path.stem == backend for word in ("--with", str(path))]
        return shlex.join([*words, *(["--device", self.device] if self.device else [])])


def _once(case: Case, outcomes: Sequence[Outcome], as_json: bool) -> None:
    for o in outcomes:
        if as_json:
            typer.echo(_line("outcome", case=str(case), **asdict(o)))
        else:
            stdout.print(_told(o, str(case)), highlight=False, soft_wrap=True)
    if any(o.bad for o in outcomes):
        raise typer.Exit(1)


def _search(search: Search, seconds: float, command: _Command, as_json: bool) -> None:
    began, interrupted = time.monotonic(), False
    try:
        with stderr.status("the first case") as shown:
            search.tell = _telling(shown, began, seconds)
            search.run(seconds)
    except KeyboardInterrupt:
        interrupted = True
    took = time.monotonic() - began
    for failure in search.failures.values():
        if as_json:
            typer.echo(
                _line("failure", case=str(failure.case), again=command.of(failure), repeats=failure.again, **asdict(failure.outcome))
            )
            continue
        stdout.print(_told(failure.outcome, str(failure.case)), highlight=False, soft_wrap=True)
        if not failure.again:
            stdout.print("  not each time: it was right when tried once more", style="yellow")
        stdout.print(f"  {command.of(failure)}", highlight=False, markup=False, soft_wrap=True)
    if as_json:
        typer.echo(_line("verify", seed=search.seed, seconds=round(took, 1), cases=search.cases, interrupted=interrupted,
                         checks=_checks(search), stand_ins=_stand_ins(search.rooms)))  # fmt: skip
    else:
        _print_whole(search, took)
    if interrupted:
        stderr.print("interrupted: what was found until then is shown", style="yellow")
        raise typer.Exit(130)
    if search.failures:
        stderr.print(f"{len(search.failures)} of {len(search.rooms)} implementations fail", style="bold red")
        raise typer.Exit(1)
    if not any(status == "ok" for _, status in search.outcomes):
        fail("nothing was verified: give more --seconds")


def _telling(shown: Status, began: float, seconds: float) -> Any:
    def tell(search: Search, case: Case) -> None:
        left = max(0.0, seconds - (time.monotonic() - began))
        doing = f"making the failure of {search.hunted} small" if search.hunted else f"{left:.0f} s left"
        failed = f", {len(search.failures)} failed" if search.failures else ""
        shown.update(f"{doing}: {search.cases} cases{failed}, {escape(str(case))}")

    return tell


def _told(o: Outcome, case: str) -> str:
    style = "green" if o.status == "ok" else "bold red" if o.bad else "yellow"
    ratio = f" {o.error_ratio:.2f}" if o.status == "ok" and o.error_ratio is not None else ""
    kernels = f" ({', '.join(o.kernels)} in the {o.stand_in})" if o.kernels else ""
    return f"[{style}]{o.status}{ratio}[/]  {escape(o.implementation)}  {escape(case)}{escape(kernels)}" + (
        f": {escape(o.reason)}" if o.reason else ""
    )


def _line(kind: str, **said: Any) -> str:
    return json.dumps(plain({"kind": kind, **said}), allow_nan=False)


def _checks(search: Search) -> dict[str, dict[str, int]]:
    """Backend -> how its cases ended."""
    counts: dict[str, Counter[str]] = {}
    for (name, status), count in search.outcomes.items():
        counts.setdefault(name.partition("/")[0], Counter())[status] += count
    return {backend: dict(found) for backend, found in counts.items()}


def _stand_ins(rooms: Mapping[str, str]) -> dict[str, list[str]]:
    """Stand-in -> the backends that ran in it."""
    backends: dict[str, list[str]] = {}
    for name, room in rooms.items():
        if room and (backend := name.partition("/")[0]) not in backends.setdefault(room, []):
            backends[room].append(backend)
    return backends


def _print_whole(search: Search, took: float) -> None:
    stdout.print(f"{search.cases} cases in {took:.0f} s, --seed {search.seed}", style="bold", highlight=False)
    for backend, counts in _checks(search).items():
        stdout.print(f"  {backend}: {', '.join(f'{count} {status}' for status, count in counts.items())}", highlight=False, markup=False)
    for line in stand_in_lines(_stand_ins(search.rooms), {op_of(name) for name in search.rooms}):
        stdout.print(line, highlight=False, soft_wrap=True)
