"""`opwise tune`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from opwise.backends import tuned_table
from opwise.backends.tuned_table import TUNABLE, Row, Table, Tunable
from opwise.commands import tune_machine
from opwise.commands.console import Device, chosen_device, fail, refuse, stderr, stdout
from opwise.commands.executors import Share, ready
from opwise.measure.device import facts, slug
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.runner import WorkerLost
from opwise.runner.supervisor import Patience, Worker
from opwise.tuning import planning, tables
from opwise.tuning.measuring import carried_out
from opwise.tuning.planning import Sheet
from opwise.tuning.standing import Facts, devices, standing, stored

EXAMPLES = (
    "Examples:  opwise tune  ·  opwise tune --quick  ·  opwise tune matmul --backend triton_jit  ·  opwise tune "
    "matmul/4096x11008x4096/float16  ·  opwise tune --machine  ·  opwise tune --dry-run  ·  opwise tune --show  ·  opwise tune mean --reset"
)
PLAN_S = 180.0


def tune(
    wanted: Annotated[
        list[str] | None, typer.Argument(metavar="[OP]...", help="Ops whose tables are measured, or workloads. Default: every table.")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="Only the tables that this backend uses, measured through it.")] = None,
    device: Device = None,
    machine: Annotated[
        bool, typer.Option("--machine", help="Instead, measure this GPU's numbers for the cost model of products, in a minute.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer workloads, in a third of the time.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be measured, and about how long it takes.")] = False,
    show: Annotated[bool, typer.Option("--show", help="The tables in force, with the times that justify them.")] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Remove the stored tables; the shipped ones are used again.")] = False,
    share: Share = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable, as stored: one table a line.")] = False,
) -> None:
    """Measure which kernel configuration is the fastest on this GPU, and store it for later plans.

    Exit status 1 where a configuration was wrong or failed.
    """
    if machine:
        given = {"ops and workloads": wanted, "--backend": backend, "--quick": quick, "--dry-run": dry_run}
        if named := [name for name, value in given.items() if value]:
            refuse(f"--machine measures its own products: leave {', '.join(named)} out")
    if sum((quick or dry_run, show, reset)) > 1:
        refuse("--show and --reset are about what is stored, the other options about measuring: give one of them")
    if as_json and (dry_run or reset):
        refuse(f"--json prints tables, and {'--dry-run' if dry_run else '--reset'} has none: leave one out")
    ops, workloads = _sorted(wanted or [])
    known = [] if machine else tuned_table.tunables([*ops, *(w.op for w in workloads)], backend)
    if not known and not machine:
        asked = f"{' '.join(wanted or [])}{f' in {backend}' if backend else ''}"
        refuse(f"no table is for {asked}: there are {', '.join(map(_told, TUNABLE.values()))}")
    if show:
        _show(known, device, as_json, numbers=machine or not (wanted or backend))
    elif reset:
        _reset(known, device, numbers=machine or not (wanted or backend))
    elif machine:
        tune_machine.tune_machine(device, _root(device, "--show says what is stored"), share, as_json)
    elif dry_run:
        _print_plan(_planned(known, workloads, quick, backend, chosen_device(device)))
    else:
        _tune(known, workloads, quick, backend, device, share, as_json)


def _told(known: Tunable) -> str:
    return f"{known.name} (of {' and '.join(known.serves)})"


def _sorted(wanted: Sequence[str]) -> tuple[list[str], list[Workload]]:
    """Ops, and workloads spelled out."""
    ops, workloads = list[str](), list[Workload]()
    for text in wanted:
        if text in OPS:
            ops.append(text)
            continue
        try:
            workload = Workload.parse(text)
            OPS[workload.op].sizes(workload.shape)
        except (ValueError, KeyError):
            refuse(f"{text!r} is no op and no workload: ops with tables are {', '.join(dict.fromkeys(t.op for t in TUNABLE.values()))}; a "
                   "workload is written matmul/4096x4096x4096/float16")  # fmt: skip
        workloads.append(workload)
    if ops and workloads:
        refuse("ops and workloads exclude each other: ops are measured at workloads of their own, give one kind")
    return ops, workloads


# -- measuring ---------------------------------------------------------------------------------------------------------------


def _tune(
    known: Sequence[Tunable],
    workloads: Sequence[Workload],
    quick: bool,
    backend: str | None,
    device: str | None,
    share: bool,
    as_json: bool,
) -> None:
    root = _root(device, "--dry-run says what it would measure, --show what is stored")
    with ready(device, share=share) as here:
        sheets = _planned(known, workloads, quick, backend, here.survey.device)
        _print_plan(sheets, stderr)
        measurable = [sheet for sheet in sheets if not sheet.why_not]
        if not measurable:
            fail("there is nothing to measure")
        rows, done, lost, interrupted = _carried_out(measurable, here.survey.facts, here.survey.device, root)
    for table, path in done:
        if as_json:
            typer.echo(json.dumps(asdict(table)))
            continue
        _print(table, rows)
        _line(f"stored in {path}")
        _line(f"figures on record of {' and '.join(TUNABLE[table.name].serves)} are of other tables: opwise run {TUNABLE[table.name].op} "
              "takes them anew")  # fmt: skip
    for line in (*lost, *tables.troubles(rows)):
        stderr.print(line, style="bold red", highlight=False, markup=False, soft_wrap=True)
    if interrupted:
        stderr.print(f"interrupted; {len(rows)} measured workloads are kept: opwise tune --show", style="yellow", highlight=False)
        raise typer.Exit(130)
    if lost or list(tables.troubles(rows)):
        raise typer.Exit(1)


def _root(device: str | None, instead: str) -> Path:
    """Where to store what is measured. Ends the command where nothing can be. instead: what can be asked all the same."""
    root = tuned_table.folder()
    if root is None:
        refuse(f"{tuned_table.VARIABLE}={tuned_table.OFF} is set, which disables stored tables: unset it, or set it to a folder")
    if chosen_device(device) == "cpu":
        fail(f"tables need a GPU's times, and torch sees none here: run it on the machine with that GPU; {instead}")
    return root


def _carried_out(
    sheets: Sequence[Sheet], found: Facts, device: str, root: Path
) -> tuple[list[Row], list[tuple[Table, Path]], list[str], bool]:
    """The rows, the finished tables, what came to nothing, and whether Ctrl-C ended it early."""
    rows, done, lost = list[Row](), list[tuple[Table, Path]](), list[str]()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    count = sum(len(sheet.jobs) for sheet in sheets)
    events = carried_out(sheets, found, device, root)
    try:
        with Progress(*columns, console=stderr, transient=True) as progress:
            task = progress.add_task("starting", total=sum(s.compiling_s + s.measuring_s for s in sheets))
            for event in events:
                if event.row is not None:
                    rows.append(event.row)
                lost += [event.lost] if event.lost else []
                if event.table is not None and event.path is not None:
                    done.append((event.table, event.path))
                progress.update(task, advance=event.seconds, description=f"{len(rows)}/{count} {event.text}"[:80])
    except KeyboardInterrupt:
        return rows, done, lost, True
    finally:
        events.close()
    return rows, done, lost, False


def _planned(known: Sequence[Tunable], workloads: Sequence[Workload], quick: bool, backend: str | None, device: str) -> list[Sheet]:
    request = (planning.planned, [t.name for t in known], list(workloads), quick, backend, device)
    try:
        with stderr.status("looking at the plans"), Worker(device) as worker:
            sheets: list[Sheet] = worker.ask("apply", request, Patience(PLAN_S))
    except WorkerLost as lost:
        fail(f"the plans cannot be read: {lost.reason}")
    return sheets


def _print_plan(sheets: Sequence[Sheet], console: Any = stdout) -> None:
    for sheet in sheets:
        if sheet.why_not:
            stderr.print(f"{sheet.table} is left out: {sheet.why_not}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    if any(not sheet.why_not for sheet in sheets):
        if sheets[0].jobs and sheets[0].jobs[0].device == "cpu":
            console.print("as on an NVIDIA H100, since there is no GPU here", highlight=False)
        console.print(tables.planned(sheets))
        console.print(tables.about(sheets), highlight=False)


# -- what is stored ----------------------------------------------------------------------------------------------------------


def _show(known: Sequence[Tunable], device: str | None, as_json: bool, numbers: bool) -> None:
    if device is None and not torch.cuda.is_available():
        names = devices()
        found = [s for name in names for s in stored(known, name)]
        where = "no GPU here; stored for others"
    elif device is not None and not device.startswith("cuda"):
        names, found, where = [device], stored(known, device), f"stored for {device}"
    else:
        here = facts(torch.device(chosen_device(device)))
        names, found = [str(here["device"])], standing(here, known)
        where = f"{here['device']}, compute capability {here.get('capability')}, driver {here.get('driver')}"
    if as_json:
        for s in found:
            if s.table is not None:
                typer.echo(json.dumps(asdict(s.table)))
        for name in names if numbers else []:
            tune_machine.show(name, as_json)
        return
    stdout.print(f"{where}: tuned tables are in {tuned_table.folder() or 'use nowhere (OPWISE_TUNED=off)'}", style="bold", highlight=False,
                 markup=False, soft_wrap=True)  # fmt: skip
    for s in found:
        if s.table is not None:
            _print(s.table, s.table.rows)
        elif s.why:
            _line(f"{s.tunable.name}: shipped. {s.why}")
        else:
            _line(f"{s.tunable.name}: shipped, whose measurements are in docs/lab.md: opwise tune {s.tunable.op} measures it here")
    for name in names if numbers else []:
        tune_machine.show(name, as_json)
    if not found and not (numbers and names):
        _line("none: opwise tune, on a machine with a GPU, makes them; the shipped tables' measurements are in docs/lab.md")


def _reset(known: Sequence[Tunable], device: str | None, numbers: bool) -> None:
    if device is None and not torch.cuda.is_available():
        refuse(f"--reset without a GPU: say which device's, --device with one of {', '.join(devices()) or 'none, nothing is stored'}")
    name = device if device is not None and not device.startswith("cuda") else str(facts(torch.device(chosen_device(device)))["device"])
    removed = []
    for t in known:
        if path := tuned_table.existing(t.name, name):
            path.unlink()
            removed.append(t.name)
    if numbers and tune_machine.reset(name):
        removed.append("the GPU's numbers")
    _line(f"removed of {slug({'device': name})}: {', '.join(removed) or 'nothing, no such table is stored'}")


def _print(table: Table, rows: Sequence[Row]) -> None:
    _line(tables.headline(table))
    stdout.print(tables.grid([row for row in table.rows if row in rows]))
    for line in tables.elsewhere(table):
        _line(line)


def _line(text: str) -> None:
    stdout.print(text, highlight=False, markup=False, soft_wrap=True)
