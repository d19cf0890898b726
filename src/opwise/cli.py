"""The `opwise` command. Results go to stdout, progress and messages to stderr.

Exit status: 0 all right, 1 something wrong or failed, 2 bad usage, 130 interrupted.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, NoReturn

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import opwise
from opwise import library
from opwise.record import Record, UnknownSchema, read
from opwise.report import overview, tables
from opwise.runner import SETS, UnknownName, WorkerLost
from opwise.runner.session import Session, Survey, default_device, survey

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Which way of writing a GPU kernel is right, how fast is it against the hardware's limit, which one to use.",
)
# Into a file or a pipe rich would assume 80 columns and cut the figures off.
stdout = Console(width=None if sys.stdout.isatty() else max(170, int(os.environ.get("COLUMNS", 0))))
stderr = Console(stderr=True)

Filters = Annotated[list[str] | None, typer.Argument(metavar="[FILTER]...", help="Any part of an implementation or workload name.")]
SetName = Annotated[str | None, typer.Option("--set", help=f"Workloads: {', '.join(SETS)}. Default: core; smoke without a GPU.")]
Variants = Annotated[bool, typer.Option("--variants", help="The textbook and other named variants too.")]
Device = Annotated[str | None, typer.Option(help="cuda:0, cuda:1, … or cpu. Default: the first GPU, else cpu.")]
Out = Annotated[Path, typer.Option(help="Folder of the stored runs.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable: one record a line, as stored.")]


def main() -> None:
    app()


def _version(wanted: bool) -> None:
    if wanted:
        stdout.print(f"opwise {opwise.__version__}", highlight=False)
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]


@app.callback()
def common(version: Version = False) -> None:
    pass


@app.command(epilog="Examples:  opwise run  ·  opwise run softmax triton_jit  ·  opwise run 'softmax/4096x4096/*' --variants  ·  "
                    "opwise run matmul/512x512x512/float16 --json")  # fmt: skip
def run(
    filters: Filters = None,
    set_name: SetName = None,
    variants: Variants = False,
    device: Device = None,
    out: Out = Path("results"),
    first_call: Annotated[bool, typer.Option("--first-call", help="Also time the first call, compiler caches empty and full.")] = False,
    as_json: Json = False,
) -> None:
    """Check every implementation, time it side by side with the others, store the records, print a table an op."""
    _run(filters or [], set_name, variants, device, out, timed=True, as_json=as_json, first_call=first_call)


@app.command(epilog="Examples:  opwise check  ·  opwise check gelu --variants  ·  opwise check triton_jit --set smoke")
def check(
    filters: Filters = None, set_name: SetName = None, variants: Variants = False, device: Device = None, as_json: Json = False
) -> None:
    """Only right or wrong: against the float64 reference, on easy and on hard inputs, and against each other. Stores nothing."""
    _run(filters or [], set_name or "smoke", variants, device, None, timed=False, as_json=as_json)


@app.command()
def backends(device: Device = None, as_json: Json = False) -> None:
    """What is available here, with versions, or why not and what to do."""
    catalogue = _survey(_device(device)).catalogue
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(entry) for entry in catalogue.values()]))
        return
    table = Table(show_edge=False, pad_edge=False)
    for name in ("backend", "here", "versions", "why not, and what to do"):
        table.add_column(name, overflow="fold")
    for name, entry in catalogue.items():
        here = "no" if not entry.available else f"stand-in: {entry.stand_in}" if entry.stand_in else "yes"
        versions = ", ".join(f"{library_} {version}" for library_, version in entry.versions.items())
        table.add_row(name, here, versions, escape(f"{entry.reason}: {entry.remedy}" if entry.reason else ""))
    stdout.print(table)


@app.command(epilog="Examples:  opwise show  ·  opwise show h200  ·  opwise show results/nvidia-h200/….jsonl --json")
def show(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A file, or part of its name. Default: the newest.")] = None,
    out: Out = Path("results"),
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The README's table: SOL per workload and backend.")] = False,
) -> None:
    """A stored run again, from any machine."""
    try:
        path = library.find(run, out)
        records = _read(path)
    except (library.NoSuchRun, UnknownSchema, OSError) as error:
        _refuse(str(error))
    if markdown:
        typer.echo(f"{_where(records)}\n\n{overview.markdown(records)}")
    else:
        _print(records, as_json, title=f"{path}: {_where(records)}")


def _run(
    filters: list[str], set_name: str | None, variants: bool, device: str | None, out: Path | None, *, timed: bool, as_json: bool,
    first_call: bool = False,
) -> None:  # fmt: skip
    name = _device(device)
    set_name = set_name or ("smoke" if name == "cpu" else "core")
    if set_name not in SETS:
        _refuse(f"--set {set_name!r} is unknown: known are {', '.join(SETS)}")
    found = _survey(name)
    if name == "cpu" and not as_json:
        stderr.print("No GPU here: kernels run in stand-ins or are only compiled; nothing is timed.", style="yellow", highlight=False)
    try:
        session = Session.planned(found, filters, set_name, variants=variants, timed=timed and name != "cpu", out=out)
    except UnknownName as error:
        _refuse(str(error))
    if not session.jobs:
        _refuse(f"nothing in set {set_name!r} fits {' '.join(filters)!r}: another --set, or a workload spelled out, may")
    interrupted = _carry_out(session, first_call and name != "cpu")
    _print(session.records, as_json, title=_where(session.records))
    if session.path is not None and not as_json:
        stdout.print(f"stored in {session.path}", highlight=False, soft_wrap=True)
    if interrupted:
        stderr.print(f"interrupted: {len(session.records)} finished records are kept", style="yellow")
        raise typer.Exit(130)
    if name == "cpu" and not as_json and timed:
        _show_shipped()
    if session.trouble:
        stderr.print(f"{len(session.trouble)} of {len(session.records)} cells are wrong or failed", style="bold red")
        raise typer.Exit(1)


def _carry_out(session: Session, first_call: bool) -> bool:
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


def _device(name: str | None) -> str:
    if name is None:
        return default_device()
    try:
        device = torch.device(name)
    except RuntimeError as error:
        _refuse(f"--device {name!r} is no device: give cuda:0 or cpu ({str(error).splitlines()[0]})")
    count = torch.cuda.device_count()
    if device.type not in ("cuda", "cpu") or (device.type == "cuda" and (device.index or 0) >= count):
        _refuse(f"--device {name!r} is not here: {f'cuda:0 to cuda:{count - 1}' if count else 'no GPU is seen'}, and cpu")
    return f"cuda:{device.index or 0}" if device.type == "cuda" else "cpu"


def _survey(device: str) -> Survey:
    try:
        with stderr.status("looking at the machine"):
            return survey(device)
    except WorkerLost as lost:
        stderr.print(f"this machine cannot be looked at: {escape(lost.reason)}", style="bold red")
        raise typer.Exit(1) from lost


def _read(path: Path) -> list[Record]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        records = read(path)
    for warning in caught:
        stderr.print(f"warning: {warning.message}", style="yellow", highlight=False)
    return records


def _where(records: list[Record]) -> str:
    if not records:
        return "no finished record"
    r = records[-1]
    changed = ", changed since" if r.dirty else ""
    return f"{r.device}, driver {r.driver or 'none'}, commit {r.commit or 'unknown'}{changed}, {r.time}"


def _print(records: list[Record], as_json: bool, title: str) -> None:
    if as_json:
        for record in records:
            typer.echo(record.to_json())
        return
    stdout.print(title, style="bold", highlight=False, markup=False)
    if any(r.kernel_cold_us for r in records):
        tables.show(records, stdout)
        return
    stdout.print(overview.verdicts(records))
    tables.show([r for r in records if r.status != "ok" and not tables.only_compiled(r)], stdout)


def _show_shipped() -> None:
    try:
        path = library.find(None, library.shipped(), "nvidia-h200", "core")
    except library.NoSuchRun:
        return
    records = _read(path)
    stdout.rule("not measured here: the newest H200 run that ships with opwise")
    stdout.print(_where(records), style="bold", highlight=False, markup=False)
    stdout.print(overview.table(records))
    stdout.print(f"all of it: opwise show {path.stem}", highlight=False, soft_wrap=True)


def _refuse(message: str) -> NoReturn:
    stderr.print(f"opwise: {escape(message)}", style="bold red", highlight=False, soft_wrap=True)
    raise typer.Exit(2)


if __name__ == "__main__":
    main()
