"""`opwise seeds`: the experiments that opwise comes from, beside the figures that were published."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from opwise.commands.console import Device, chosen_device, ending, one_form, refuse, stderr, stdout
from opwise.seeds import plot as plotting
from opwise.seeds import store, tables
from opwise.seeds.experiment import DIFFERS, FAILED, Experiment, Outcome
from opwise.seeds.running import carried_out
from opwise.seeds.table import UnknownExperiment, chosen

EXAMPLES = (
    "Examples:  opwise seeds  ·  opwise seeds --list  ·  opwise seeds squares gelu  ·  opwise seeds fault  ·  "
    "opwise seeds softmax --plot plots  ·  opwise seeds trace --keep kept  ·  opwise seeds -o results  ·  opwise seeds --recorded"
)

Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Experiments, or parts of their names. Default: all.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="DIR", help="Plot the softmax sweep as HTML, SVG and PNG into this folder.")]
Out = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="FILE", help="Store the run: a file, or a folder of runs such as results.")
]

Keep = Annotated[
    Path | None, typer.Option("--keep", metavar="DIR", help="Write traces, stacks and profilers' tables of this run into this folder.")
]


def seeds(
    names: Names = None,
    listed: Annotated[bool, typer.Option("--list", help="List the experiments, and what each needs.")] = False,
    recorded: Annotated[bool, typer.Option("--recorded", help="Show the newest stored run of a GPU instead of running here.")] = False,
    plot: Plot = None,
    out: Out = None,
    keep: Keep = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable: the run as it is stored.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The tables in Markdown.")] = False,
) -> None:
    """Repeat the experiments of the lecture notes and articles behind opwise: the published figure, the one here, and the ratio of the two
    GPUs.

    Without a GPU, experiments that show a fault or count lines run; the others say what they need. Exit status 1 where an experiment fails.
    """
    one_form(as_json, markdown)
    if recorded and (out or device or keep):
        refuse("--recorded shows a stored run: -o, --keep and --device go with a run here")
    if out is not None and out.suffix and not out.is_dir():
        ending("-o", out, (".json",))
    try:
        experiments = chosen(names or [])
    except UnknownExperiment as error:
        refuse(str(error))
    if listed:
        if markdown or recorded or out or keep or plot:
            refuse("--list runs nothing and shows no run: give it names and --json at most")
        _list(experiments, as_json)
        return
    if recorded:
        run, interrupted = _stored(experiments), False
    else:
        run, interrupted = _made(experiments, chosen_device(device), out, quiet=as_json or markdown)
    if as_json:
        typer.echo(json.dumps(run.as_data(), indent=1))
    elif markdown:
        typer.echo(tables.markdown(run))
    else:
        _print(run, with_tables=bool(names))
    if keep is not None:
        _keep(run, keep)
    if plot is not None:
        _plot(run, plot)
    if interrupted:
        stderr.print(f"interrupted: {len(run.outcomes)} of {len(experiments)} experiments were done", style="yellow")
        raise typer.Exit(130)
    if any(outcome.status == FAILED for outcome in run.outcomes):
        raise typer.Exit(1)


def _list(experiments: Sequence[Experiment], as_json: bool) -> None:
    if as_json:
        for e in experiments:
            data = {"name": e.name, "source": e.source, "what": e.what, "needs": e.needs, "elsewhere": e.elsewhere}
            typer.echo(json.dumps(data))
        return
    for source in dict.fromkeys(e.source for e in experiments):
        stdout.print(source, style="bold", highlight=False, markup=False)
        for e in (e for e in experiments if e.source == source):
            note = f" (see {e.elsewhere})" if e.elsewhere else f" (needs {e.needs.split(':')[0]})" if e.needs else ""
            stdout.print(f"  {e.name:24} {e.what}{note}", highlight=False, markup=False, soft_wrap=True)


def _stored(experiments: Sequence[Experiment]) -> store.SeedRun:
    try:
        run = store.recorded([Path("results")])
    except (store.NothingRecorded, store.BadFile, OSError) as error:
        refuse(str(error))
    wanted = {e.name for e in experiments}
    kept = tuple(outcome for outcome in run.outcomes if outcome.name in wanted)
    return store.SeedRun(run.facts, kept, run.time, run.seconds, run.path)


def _made(experiments: Sequence[Experiment], device: str, out: Path | None, quiet: bool) -> tuple[store.SeedRun, bool]:
    """The run, and whether Ctrl-C ended it early. What is done is in the file after each experiment."""
    if device == "cpu" and not quiet:
        stderr.print("No GPU here: faults are shown and lines are counted; what is a GPU's time says what it needs.", style="yellow")
    began, outcomes, interrupted = time.perf_counter(), list[Outcome](), False
    run = store.made(_facts(device), [], 0.0)
    path = store.path_of(run, out) if out is not None else None
    order = {e.name: i for i, e in enumerate(experiments)}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=stderr, transient=True) as progress:
            task = progress.add_task("starting", total=len(experiments))
            running: list[str] = []
            for event in carried_out(experiments, device):
                if event.outcome is None:
                    running.append(event.experiment.name)
                else:
                    outcomes.append(event.outcome)
                    running = [name for name in running if name != event.experiment.name]
                    outcomes.sort(key=lambda outcome: order[outcome.name])
                    run = replace(run, outcomes=tuple(outcomes), seconds=time.perf_counter() - began)
                    if path is not None:
                        store.write(run, path)
                progress.update(task, completed=len(outcomes), description=", ".join(running)[:60] or "starting")
    except KeyboardInterrupt:
        interrupted = True
    if path is not None:
        stderr.print(f"stored in {path}", highlight=False, markup=False, soft_wrap=True)
    return run, interrupted


def _facts(device: str) -> dict[str, object]:
    from opwise.measure.device import facts
    from opwise.provenance import commit

    found = facts(torch.device(device))
    head, dirty = commit()
    kept = ("device", "driver", "capability", "versions", "python")
    return {key: found[key] for key in kept if key in found} | {"commit": head, "dirty": dirty}


def _print(run: store.SeedRun, with_tables: bool) -> None:
    """`with_tables`: those of the profilers too, which are long: of what was asked for by name."""
    stdout.print(tables.where(run), style="bold", highlight=False, markup=False)
    for source, table in tables.rich_tables(run):
        stdout.print(f"\n{source}", style="bold", highlight=False, markup=False)
        stdout.print(table)
    for outcome in run.outcomes if with_tables else ():
        for title, text in outcome.tables.items():
            stdout.print(f"\n{outcome.name}: {title}", style="bold", highlight=False, markup=False)
            typer.echo(text.strip("\n"))
    if any(o.ratio for o in run.outcomes):
        stdout.print(f"\n{tables.EXPLAINED}", highlight=False, markup=False, soft_wrap=True)
    stdout.print(f"{len(run.outcomes)} experiments: {tables.counted(run.outcomes)}", style="bold", highlight=False)
    if not run.gpu and (known := _known_elsewhere()):
        stdout.print(f"on {known}: opwise seeds --recorded", highlight=False, markup=False)
    if different := [o.name for o in run.outcomes if o.status == DIFFERS]:
        stdout.print(f"came out otherwise than published: {', '.join(different)}", style="yellow", highlight=False, soft_wrap=True)


def _keep(run: store.SeedRun, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for outcome in run.outcomes:
        tables_of = "\n".join(f"{title}\n{table}" for title, table in outcome.tables.items())
        for name, text in (*outcome.files.items(), *([(f"{outcome.name}-tables.txt", tables_of)] if tables_of else [])):
            (folder / name).write_text(text, encoding="utf-8")
            stderr.print(f"kept in {folder / name}", highlight=False, markup=False, soft_wrap=True)


def _known_elsewhere() -> str:
    """The GPU of the newest stored run; "" where there is none."""
    try:
        return store.recorded([Path("results")]).device
    except (store.NothingRecorded, store.BadFile, OSError):
        return ""


def _plot(run: store.SeedRun, folder: Path) -> None:
    try:
        for path in plotting.write(run, folder):
            stderr.print(f"plotted into {path}", highlight=False, markup=False, soft_wrap=True)
    except plotting.NothingToPlot as error:
        stderr.print(f"no plot: {escape(str(error))}", style="yellow", highlight=False, soft_wrap=True)
    except plotting.ExtraMissing as error:
        refuse(str(error))
