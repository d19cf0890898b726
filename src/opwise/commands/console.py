"""What the commands share: where they print, the options they have in common, and how they refuse."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import torch
import typer
from rich.console import Console
from rich.markup import escape

from opwise import own
from opwise.program.calls import BadRecording, Recording
from opwise.record import Record, read
from opwise.report import overview, tables
from opwise.report.roofs import roofs_of, whose
from opwise.runner import SETS, Job, WorkerLost
from opwise.runner.survey import Survey, default_device, survey

# Into a file or a pipe rich would assume 80 columns and cut the figures off.
_columns = os.environ.get("COLUMNS", "")
stdout = Console(width=None if sys.stdout.isatty() else max(200, int(_columns) if _columns.isdecimal() else 0))
stderr = Console(stderr=True)

Filters = Annotated[list[str] | None, typer.Argument(metavar="[FILTER]...", help="Any part of an implementation or workload name.")]
SetName = Annotated[str | None, typer.Option("--set", help=f"Workloads: {', '.join(SETS)}. Default: core; smoke without a GPU.")]
NEWEST = "the newest of --out, else of those that ship"
Variants = Annotated[bool, typer.Option("--variants", help="The textbook and other named variants too.")]
Device = Annotated[str | None, typer.Option(help="cuda:0, cuda:1, … or cpu. Default: the first GPU, else cpu.")]
Out = Annotated[Path, typer.Option(help="Folder of the stored runs.")]
With = Annotated[
    list[Path] | None, typer.Option("--with", metavar="FILE", help="A kernel of your own, ranked beside the others: see opwise.kernel.")
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable: one record a line, as stored.")]


def chosen_device(name: str | None) -> str:
    if name is None:
        return default_device()
    try:
        device = torch.device(name)
    except RuntimeError as error:
        refuse(f"--device {name!r} is no device: give cuda:0 or cpu ({str(error).splitlines()[0]})")
    count = torch.cuda.device_count()
    if device.type not in ("cuda", "cpu") or (device.type == "cuda" and (device.index or 0) >= count):
        refuse(f"--device {name!r} is not here: {f'cuda:0 to cuda:{count - 1}' if count else 'no GPU is seen'}, and cpu")
    return f"cuda:{device.index or 0}" if device.type == "cuda" else "cpu"


def named_files(given: list[Path] | None) -> dict[str, Path]:
    """What --with was given: the name that a file's rows go by -> the file. Ends the command where one cannot be taken."""
    try:
        return own.named(given or [])
    except own.BadFile as error:
        refuse(f"--with {error}")


def surveyed(device: str, own_files: list[Path] | None = None) -> Survey:
    files = named_files(own_files)
    try:
        with stderr.status("looking at the machine"):
            return survey(device, files)
    except WorkerLost as lost:
        stderr.print(f"this machine cannot be probed: {escape(lost.reason)}", style="bold red")
        raise typer.Exit(1) from lost


def known(option: str, given: Sequence[str] | None, names: Collection[str]) -> None:
    """Ends the command where an option names what is not there."""
    for name in given or ():
        if name not in names:
            refuse(f"{option} {name!r} is unknown: known are {', '.join(names)}")


def one_form(as_json: bool, markdown: bool) -> None:
    """Ends the command where both forms of output are asked for."""
    if as_json and markdown:
        refuse("--json and --markdown exclude each other: give one")


def none_left_out(found: Survey, jobs: Sequence[Job]) -> None:
    """Ends the command where what was asked for has nothing of a file that was given: it would be passed over in silence."""
    taken = {name.partition("/")[0] for job in jobs for name in job.implementations}
    for name, path in found.own.items():
        if name not in taken:
            held = ", ".join(f"{name}/{op}" for op, variants in found.catalogue[name].variants.items() if variants) or "no kernel"
            refuse(f"--with {path}: it holds {held}, and the filters and options exclude all of it: add {name} and its ops "
                   f"(a filter or --backend {name}), or leave --with out")  # fmt: skip


@contextmanager
def warnings_told() -> Iterator[None]:
    """What is warned of within goes to stderr, a line each, each once. What is raised there comes through, without them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        stderr.print(f"warning: {message}", style="yellow", highlight=False, markup=False, soft_wrap=True)


def read_run(path: Path) -> list[Record]:
    with warnings_told():
        return read(path)


def read_recording(path: Path) -> Recording:
    """Of --recorded. Ends the command where the file is none."""
    try:
        return Recording.read(path)
    except (BadRecording, OSError) as error:
        refuse(f"--recorded {error}")


def where(records: list[Record]) -> str:
    if not records:
        return "no finished record"
    r = records[-1]
    changed = ", changed since" if r.dirty else ""
    shared = next((f", on a GPU shared with {r.shared}" for r in records if r.shared), "")
    return f"{r.device}, driver {r.driver or 'none'}, commit {r.commit or 'unknown'}{changed}, {r.time}{shared}"


def print_records(records: list[Record], as_json: bool, title: str) -> None:
    if as_json:
        for record in records:
            typer.echo(record.to_json())
        return
    stdout.print(title, style="bold", highlight=False, markup=False)
    if not records:
        stdout.print("no cells")
        return
    if any(r.timed for r in records):
        tables.show(records, stdout)
        return
    stdout.print(overview.verdicts(records))
    tables.show([r for r in records if r.status != "ok" and not tables.only_compiled(r)], stdout)


def print_roofs(path: Path, records: list[Record]) -> None:
    """What a run's times are held against."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torn lines, which has been told with the cells
        roofs = roofs_of(path)
    if records and (text := whose(roofs, records[-1].device)):
        stdout.print(text, highlight=False, markup=False, soft_wrap=True)


def ending(option: str, path: Path | None, taken: Sequence[str]) -> None:
    """Ends the command where an option names a file of a kind that is not written: what is in a file is what its name says."""
    if path is not None and (path.is_dir() or not path.name.endswith(tuple(taken))):
        what = "is a folder" if path.is_dir() else f"ends in {path.suffix or 'nothing'!r}"
        refuse(f"{option} {path} {what}: give a file name that ends in {', '.join(taken)}")


def refuse(message: str) -> NoReturn:
    """Bad usage."""
    _end(message, 2)


def fail(message: str) -> NoReturn:
    """What was asked for could not be done."""
    _end(message, 1)


def _end(message: str, status: int) -> NoReturn:
    stderr.print(f"opwise: {escape(message)}", style="bold red", highlight=False, soft_wrap=True)
    raise typer.Exit(status)
