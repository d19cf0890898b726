"""`opwise anatomy`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from opwise.commands.console import Device, With, chosen_device, ending, fail, refuse, stderr, stdout, surveyed
from opwise.commands.profile import workload_of
from opwise.ops import OPS
from opwise.profiling import anatomy_plot
from opwise.profiling.anatomy import Anatomy, anatomies
from opwise.record import BAD
from opwise.report.html import MissingExtra
from opwise.report.tables import STYLES

EXAMPLES = (
    "Examples:  opwise anatomy softmax 4096x4096/float16  ·  opwise anatomy matmul matmul/512x512x512/bfloat16 --plot anatomy.html  ·  "
    "opwise anatomy gelu 1024x1024/float32 --no-first-call --json"
)
NEEDS_A_GPU = "allocate, wrap, launch, call and kernel times, and the first call of what a stand-in runs here"
First = Annotated[bool, typer.Option("--first-call/--no-first-call", help="Also time import and first call, which compiles each backend.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help=f"Stacked bars: {', '.join(anatomy_plot.FORMATS)}.")]


def anatomy(
    op: Annotated[str, typer.Argument(metavar="OP", help=f"One of {', '.join(OPS)}.")],
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", help="Its shape and dtype: 4096x4096/float16, or with the op before it.")],
    first: First = True,
    plot: Plot = None,
    own_files: With = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable: one backend a line.")] = False,
) -> None:
    """Show where each backend's time goes: import, first call, allocate, wrap, launch, kernel cold and warm, call."""
    if op not in OPS:
        refuse(f"unknown op {op!r}: known are {', '.join(OPS)}")
    wanted = workload_of(workload, op)
    ending("--plot", plot, anatomy_plot.FORMATS)
    found = surveyed(chosen_device(device), own_files)
    with stderr.status("starting") as status:
        rows = anatomies(found, wanted, first, lambda text: status.update(escape(text)))
    if as_json:
        for row in rows:
            typer.echo(json.dumps({"workload": str(wanted), "device": found.facts["device"], **row.as_dict()}))
    else:
        stdout.print(f"{wanted} on {found.facts['device']}", style="bold", highlight=False, markup=False)
        stdout.print(table(rows))
        for line in notes(rows, found.device == "cpu"):
            stdout.print(line, highlight=False, soft_wrap=True)
    if plot is not None:
        _plot(rows, plot, f"{wanted} on {found.facts['device']}")
    if bad := [row for row in rows if row.status in BAD]:
        stderr.print(f"{len(bad)} of {len(rows)} backends are wrong or failed", style="bold red")
        raise typer.Exit(1)


def _plot(rows: Sequence[Anatomy], path: Path, title: str) -> None:
    try:
        anatomy_plot.write(rows, path, title)
    except (MissingExtra, OSError, ValueError) as error:
        fail(f"--plot: {error}")
    stderr.print(f"picture in {path}", highlight=False, soft_wrap=True, markup=False)


def table(rows: Sequence[Anatomy]) -> Table:
    shown = Table(show_edge=False, pad_edge=False)
    shown.add_column("backend")
    shown.add_column("status")
    two = any(row.kernel_capped_us for row in rows)
    cold = ("cold us", "capped us") if two else ("cold us",)
    for name in ("import s", "first s", "cached s", "allocate us", "wrap us", "launch us", "call us", *cold, "warm us", "SOL"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        sol = row.limit_us / row.kernel_cold_us if row.limit_us and row.kernel_cold_us else None
        seconds = [(row.cached or {}).get("import_s"), row.first_cold_s, row.first_cached_s]
        kernel = [row.kernel_cold_us, *([row.kernel_capped_us] if two else []), row.kernel_warm_us]
        micros = [row.allocate_us, row.wrap_us, row.launch_us, row.call_us, *kernel]
        style = STYLES.get(row.status, "yellow")
        shown.add_row(escape(row.backend), f"[{style}]{row.status}[/]", *(_cell(x) for x in (*seconds, *micros)), _cell(sol))
    return shown


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def notes(rows: Sequence[Anatomy], on_cpu: bool) -> list[str]:
    """One line per reason for a missing figure, then what needs a GPU."""
    lines = [f"[yellow]{row.status}[/]  {escape(row.backend)}: {escape(row.reason)}" for row in rows if row.reason]
    stand_ins = {row.backend: row.stand_in for row in rows if row.stand_in not in (None, "cpu")}
    if stand_ins:
        lines.append("imported with their stand-ins: " + ", ".join(f"{name} with {escape(str(s))}" for name, s in stand_ins.items()))
    return [*lines, f"[yellow]needs a GPU[/]: {NEEDS_A_GPU}"] if on_cpu else lines
