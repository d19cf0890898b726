"""`opwise bars`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.markup import escape
from rich.table import Table

from opwise import library
from opwise.bars.judging import MET, NOT_MEASURED, SHORT, Figure, Run, Standing, judged, of_device, read_runs
from opwise.bars.table import BARS, DEVICE, EACH, HELD, Bar
from opwise.choosing.asked import machine_with
from opwise.choosing.store import Gpu
from opwise.commands.console import Out, chosen_device, refuse, stderr, stdout, warnings_told
from opwise.commands.executors import Gpus, Share, ready
from opwise.commands.progress import carry_out
from opwise.run_files import runs_like
from opwise.runner.session import Session

EXAMPLES = (
    "Examples:  opwise bars  ·  opwise bars results/nvidia-h200  ·  opwise bars core-b117cf7 --markdown  ·  opwise bars --json  ·  "
    "opwise bars --measure"
)
PROCESSES = 3
STYLES = {MET: "green", SHORT: "bold red", NOT_MEASURED: "yellow"}
SHOWN = 3  # workloads named for each bar that is missed


def bars(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Folders, files, or parts of their names. Default: every stored run of the device."),
    ] = None,
    measure: Annotated[bool, typer.Option("--measure", help=f"Measure first, {PROCESSES} times, each in fresh processes.")] = False,
    device: Annotated[
        str | None, typer.Option(help=f"cuda:0, or a recorded GPU. Default: the GPU here, else {DEVICE}, whose bars these are.")
    ] = None,
    out: Out = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable: one bar of one backend a line.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table in Markdown.")] = False,
    gpus: Gpus = None,
    share: Share = False,
) -> None:
    """Compare each hand-written backend's recorded figures with its required values. Exit status 1 where one falls short."""
    if measure:
        if runs:
            refuse(f"--measure takes no runs, given {' '.join(runs)}: what it measures is judged")
        found = _measured(device, out, gpus, share)
    elif gpus is not None:
        refuse("--gpus says where to measure: give --measure too")
    else:
        found = _stored(runs or [], device, out)
    name = found[-1].device
    standings = judged(BARS, found, machine_with(Gpu(name, next(iter(found[-1].cells.values())).capability)))
    if as_json:
        for standing in standings:
            typer.echo(json.dumps(as_data(standing)))
    elif markdown:
        typer.echo(as_markdown(standings))
    else:
        _show(standings, name, len(found))
    if any(s.verdict != MET for s in standings):
        raise typer.Exit(1)


def _stored(names: Sequence[str], device: str | None, out: Path) -> list[Run]:
    try:
        paths = [path for name in names for path in _paths(name, out)] if names else library.stored(out)
        with warnings_told():
            found = read_runs(dict.fromkeys(paths))
    except (library.NoSuchRun, OSError) as error:
        refuse(str(error))
    known = list(dict.fromkeys(run.device for run in found))
    wanted = _device_name(device) if device is not None or not names else ""
    kept = of_device(found, wanted) if wanted else found
    if len({run.device for run in kept}) > 1:
        refuse(f"runs of {' and '.join(known)} are given: --device takes one of them")
    if not kept:
        refuse(f"no run of {wanted or 'any device'} is among {'those given' if names else f'those under {out} and those that ship'} "
               f"(devices: {', '.join(known) or 'none'}): opwise bars --measure makes runs")  # fmt: skip
    return kept


def _paths(name: str, out: Path) -> list[Path]:
    """Raises NoSuchRun."""
    if Path(name).is_dir():
        return runs_like(Path(name), "**/*")
    return [library.find(name, out)]


def _device_name(given: str | None) -> str:
    if given is not None and not given.startswith(("cuda", "cpu")):
        return given
    if given is None and not torch.cuda.is_available():
        return DEVICE
    name = chosen_device(given)
    if name == "cpu":
        refuse("--device cpu has no bars, nothing is timed there: give cuda:0 or a recorded GPU such as nvidia-h200")
    return torch.cuda.get_device_name(torch.device(name))


def _measured(device: str | None, out: Path, gpus: str | None, share: bool) -> list[Run]:
    """Each session's workers are processes of their own. The first also takes the first calls, while nothing else runs."""
    if gpus is None and chosen_device(device) == "cpu":
        refuse("nothing can be measured here, torch sees no GPU: `opwise bars` without --measure judges what is on record")
    paths = []
    for turn in range(PROCESSES):
        with ready(device, gpus_=gpus, share=share) as here:
            session = Session.planned(here.survey, [], "bars", variants=False, timed=True, out=out)
            session.executor, session.shared = here.executor, here.shared
            stderr.print(f"{turn + 1} of {PROCESSES}: {len(session.jobs)} workloads", highlight=False)
            interrupted = carry_out(session, first_call=turn == 0)
        paths += [session.path] if session.path is not None else []
        if interrupted or session.stranded:
            stderr.print(f"{session.stranded or 'interrupted'}; {len(session.records)} finished records are kept", style="yellow")
            raise typer.Exit(130 if interrupted else 1)
    found = read_runs(paths)
    if not found:
        refuse("the measurement left no record: opwise backends says what is missing")
    return found


def as_data(standing: Standing) -> dict[str, Any]:
    bar = standing.bar
    return {
        "bar": bar.name, "what": bar.what, "over": bar.over, "state": bar.state, "backend": standing.backend, "required": standing.required,
        "at_most": bar.at_most, "value": standing.value, "verdict": standing.verdict, "stale": standing.stale,
        "workloads": [{"workload": f.workload, "value": f.value, "runs": len(f.values), "values": f.values, "gpus": f.gpus,
                       "commit": f.commit, "stale": f.stale, "reason": f.reason} for f in standing.figures],
        "command": bar.command,
    }  # fmt: skip


def as_markdown(standings: Sequence[Standing]) -> str:
    """Markdown table with a row per bar and a column per backend: the required value and the figure, bold where it is met."""
    lines = ["| bar | of | " + " | ".join(HELD) + " |", "| --- | --- |" + " ---: |" * len(HELD)]
    for bar, of_bar in _by_bar(standings):
        cells = [f"**{_cell(s)}**" if s.verdict == MET else _cell(s) for s in of_bar]
        lines.append(f"| {bar.what} | {_over(bar)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_bar(standings: Sequence[Standing]) -> list[tuple[Bar, list[Standing]]]:
    return [(bar, [s for s in standings if s.bar is bar]) for bar in dict.fromkeys(s.bar for s in standings)]


def _over(bar: Bar) -> str:
    return f"{'worst' if bar.over == EACH else bar.over} of {len(bar.workloads)}"


def _cell(s: Standing) -> str:
    sign = "<=" if s.bar.at_most else ">="
    if s.value is None:
        return f"{NOT_MEASURED} {sign} {s.required:g}"
    partial = f" ({len(s.figures) - len(s.missing)}/{len(s.figures)})" if s.missing else ""
    return f"{s.value:.3f}{'*' if s.stale else ''} {sign} {s.required:g}{partial}"


def _show(standings: Sequence[Standing], device: str, runs: int) -> None:
    title = f"{device}, {runs} run{'s' if runs > 1 else ''}; the bars are set for an NVIDIA H200; * rests on stale figures, (n/m) on n of m"
    stdout.print(title, style="bold", highlight=False, markup=False)
    table = Table(show_edge=False, pad_edge=False)
    for name in ("bar", "of"):
        table.add_column(name, overflow="fold")
    for name in HELD:
        table.add_column(name, justify="right", overflow="fold")
    for bar, of_bar in _by_bar(standings):
        table.add_row(escape(bar.what), _over(bar), *(f"[{STYLES[s.verdict]}]{escape(_cell(s))}[/]" for s in of_bar))
    stdout.print(table)
    for s in standings:
        if s.verdict == SHORT:
            _print(f"{s.backend} falls short: {s.bar.what}, {_over(s.bar)}: {_reasons(s)}")
    missing = {bar: len({f.workload for s in of_bar for f in s.missing}) for bar, of_bar in _by_bar(standings)}
    told = [f"not measured: {bar.what}, {count} of {len(bar.workloads)}: {bar.command}" for bar, count in missing.items() if count]
    for line in dict.fromkeys(told):
        _print(line)
    if stale := next((f for s in standings for f in s.figures if f.stale), None):
        _print(f"stale: {stale.stale}: opwise bars --measure takes all anew")
    counted = ", ".join(f"{sum(s.verdict == v for s in standings)} {v}" for v in (MET, SHORT, NOT_MEASURED))
    stdout.print(f"{len(standings)} bars: {counted}", style="bold", highlight=False)


def _print(line: str) -> None:
    stdout.print(line, highlight=False, markup=False, soft_wrap=True)


def _reasons(s: Standing) -> str:
    """The workloads that are to blame. What is short as a mean or a sum may have none that is by itself."""
    if s.bar.over != EACH and not any(f.reason for f in s.figures):
        return _cell(s)
    named = "; ".join(_told(f, s) for f in s.worst[:SHOWN])
    return named + (f"; and {len(s.worst) - SHOWN} more" if len(s.worst) > SHOWN else "")


def _told(f: Figure, s: Standing) -> str:
    """Where some of its runs reach the bar, each run's value too, and on which GPU: GPUs of one model differ."""
    if f.value is None:
        return f"{f.workload} {f.reason}"
    mixed = any(s.bar.passes(s.backend, value) for value in f.values)
    runs = [f"{value:.3f}{f' on {gpu}' if gpu else ''}" for value, gpu in zip(f.values, f.gpus, strict=True)]
    return f"{f.workload} {f.value:.3f}" + (f" (runs: {', '.join(runs)})" if mixed else "")
