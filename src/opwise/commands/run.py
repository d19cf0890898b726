"""`opwise run`: checks, times, stores, prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from opwise import library
from opwise.commands.console import (
    Device,
    Filters,
    Json,
    Out,
    SetName,
    Variants,
    With,
    chosen_device,
    print_records,
    read_run,
    refuse,
    stderr,
    stdout,
    surveyed,
    where,
)
from opwise.report import overview
from opwise.runner import SETS, UnknownName
from opwise.runner.session import Session

RUN_EXAMPLES = (
    "Examples:  opwise run  ·  opwise run softmax triton_jit  ·  opwise run 'softmax/4096x4096/*' --variants  ·  "
    "opwise run matmul/512x512x512/float16 --json  ·  opwise run --set grid --brief  ·  opwise run softmax --with my_softmax.py"
)


def run(
    filters: Filters = None,
    set_name: SetName = None,
    variants: Variants = False,
    device: Device = None,
    out: Out = Path("results"),
    own_files: With = None,
    first_call: Annotated[bool, typer.Option("--first-call", help="Also time the first call, compiler caches empty and full.")] = False,
    brief: Annotated[
        bool, typer.Option("--brief", help="Cold times and call costs alone, in a quarter of the time: enough to choose.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check every implementation, time it side by side with the others, store the records, print a table an op."""
    name = chosen_device(device)
    set_name = set_name or ("smoke" if name == "cpu" else "core")
    if set_name not in SETS:
        refuse(f"--set {set_name!r} is unknown: known are {', '.join(SETS)}")
    found = surveyed(name, own_files)
    if name == "cpu" and not as_json:
        stderr.print("No GPU here: kernels run in stand-ins or are only compiled; nothing is timed.", style="yellow", highlight=False)
    try:
        session = Session.planned(found, filters or [], set_name, variants=variants, timed=name != "cpu", out=out, brief=brief)
    except UnknownName as error:
        refuse(str(error))
    if not session.jobs:
        refuse(f"nothing in set {set_name!r} fits {' '.join(filters or [])!r}: another --set, or a workload spelled out, may")
    interrupted = carry_out(session, first_call and name != "cpu")
    print_records(session.records, as_json, title=where(session.records))
    if session.path is not None and not as_json:
        stdout.print(f"stored in {session.path}", highlight=False, soft_wrap=True)
    if interrupted:
        stderr.print(f"interrupted: {len(session.records)} finished records are kept", style="yellow")
        raise typer.Exit(130)
    if name == "cpu" and not as_json:
        _show_shipped()
    if session.trouble:
        stderr.print(f"{len(session.trouble)} of {len(session.records)} cells are wrong or failed", style="bold red")
        raise typer.Exit(1)


def carry_out(session: Session, first_call: bool = False) -> bool:
    """Runs the session behind a progress bar; True where Ctrl-C ended it early."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=stderr, transient=True) as progress:
            task = progress.add_task("first calls, compiler caches empty" if first_call else "starting", total=len(session.jobs))
            if first_call:
                session.measure_first_calls()
            done: set[object] = set()
            for event in session.events():
                if event.turn is not None:
                    progress.update(task, description=f"{event.job.workload} {event.turn[0].split('/')[0]} {event.turn[1]}"[:60])
                else:
                    done.add(event.job.workload)
                    progress.update(task, completed=len(done))
    except KeyboardInterrupt:
        return True
    return False


def _show_shipped() -> None:
    try:
        path = library.find(None, library.shipped(), "nvidia-h200", "core")
    except library.NoSuchRun:
        return
    records = read_run(path)
    stdout.rule("not measured here: the newest H200 run that ships with opwise")
    stdout.print(where(records), style="bold", highlight=False, markup=False)
    stdout.print(overview.table(records))
    stdout.print(f"all of it: opwise show {path.stem}", highlight=False, soft_wrap=True)
