"""`opwise compare`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from opwise import comparing, library
from opwise.backends import BACKENDS
from opwise.commands.console import Out, read_run, refuse, stdout, where
from opwise.comparing import Comparison
from opwise.record import STATES, Record, UnknownSchema
from opwise.settling import Agreement, agreement

EXAMPLES = (
    "Examples:  opwise compare triton_jit/softmax torch_eager/softmax  ·  opwise compare triton_jit torch_eager --for call  ·  "
    "opwise compare core-b117cf7 core-122e40b --json"
)
SIDE = "An implementation (triton_jit/softmax), a backend, or a run: a file or part of its name."
TIMES_HELP = (
    f"Which time: {', '.join(comparing.TIMES)}. kernel is GPU time from a cold L2: at full clock and power-capped, a row each, where the "
    "power cap changes it. warm is taken back to back, and so power-capped."
)
STYLES = {"faster": "green", "slower": "red", "same": "", "undecided": "yellow", "not compared": "dim"}


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=SIDE)],
    b: Annotated[str, typer.Argument(metavar="B", help="What A is compared with, of the same kind.")],
    run: Annotated[str | None, typer.Option(help="The run that holds both implementations. Default: the newest that does.")] = None,
    what: Annotated[str, typer.Option("--for", help=TIMES_HELP)] = "kernel",
    out: Out = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable: one comparison a line.")] = False,
) -> None:
    """Compare A with B workload by workload: faster, slower, same within 1 %, or undecided, with ratio and interval."""
    if what not in comparing.TIMES:
        refuse(f"--for {what!r} is unknown: known are {', '.join(comparing.TIMES)}")
    try:
        title, found, agreed = (
            _within(a, b, run, what, out) if run or _is_implementation(a) or _is_implementation(b) else _across(a, b, what, out)
        )
    except (library.NoSuchRun, UnknownSchema, OSError) as error:
        refuse(str(error))
    if as_json:
        for comparison in found:
            typer.echo(json.dumps(dataclasses.asdict(comparison)))
        return
    stdout.print(title, style="bold", highlight=False, markup=False)
    stdout.print(_table(found))
    stdout.print(f"A is: {comparing.counted(found)}", style="bold", highlight=False)
    for line in (str(agreed), *agreed.flips) if agreed is not None else ():
        stdout.print(line, highlight=False, markup=False, soft_wrap=True)


def _is_implementation(text: str) -> bool:
    """By its backend, where that is one of opwise's. A user's own is told from a run by what follows: --run says that it is one."""
    return not Path(text).is_file() and text.partition("/")[0] in BACKENDS


def _within(a: str, b: str, run: str | None, what: str, out: Path) -> tuple[str, list[Comparison], None]:
    """Raises NoSuchRun."""
    ops = [op for name in (a, b) if (op := name.partition("/")[2].partition(":")[0])]
    if a == b or len(set(ops)) > 1:
        refuse(f"{a} and {b} cannot be compared: two different implementations of one op are taken")
    path, records = _holding(a, b, run, out)
    for name in (a, b):
        if not any(comparing.fits(name, r) for r in records):
            known = ", ".join(dict.fromkeys(r.implementation for r in records))
            refuse(f"{path} holds no {name}: it holds {known}")
    found = list(comparing.implementations(records, a, b, what))
    if not found:
        refuse(f"{path} holds {a} and {b}, but at no common workload")
    unpaired = sum(c.verdict != comparing.NOTHING and not c.paired for c in found)
    note = f"; {unpaired} unpaired, of the medians' intervals" if unpaired else ""
    return f"A = {a}, B = {b}, {_name(what)}, in {path}: {where(records)}{note}", found, None


def _holding(a: str, b: str, run: str | None, out: Path) -> tuple[Path, list[Record]]:
    """The run that is asked for, else the newest that holds both, else one of them, else the newest of all. Raises NoSuchRun."""
    nearest, most = library.find(run, out), 0
    if run is None:
        for path in reversed(library.stored(out)):
            records = read_run(path)
            held = sum(any(comparing.fits(name, r) and r.timed for r in records) for name in (a, b))
            if held == 2:
                return path, records
            if held > most:
                nearest, most = path, held
    return nearest, read_run(nearest)


def _across(a: str, b: str, what: str, out: Path) -> tuple[str, list[Comparison], Agreement | None]:
    """Raises NoSuchRun."""
    paths = [library.find(name, out) for name in (a, b)]
    if paths[0].resolve() == paths[1].resolve():
        refuse(f"{a!r} and {b!r} are both the run {paths[0]}: give two runs, or two implementations as backend/op")
    records = [read_run(path) for path in paths]
    found = list(comparing.runs(records[0], records[1], what))
    if not found:
        refuse(f"{paths[0]} and {paths[1]} have no implementation at a common workload")
    lines = [f"{side} = {path}: {where(rs)}" for side, path, rs in zip("AB", paths, records, strict=True)]
    devices = list(dict.fromkeys(device for c in found for device in (c.a_device, c.b_device)))
    kind = f"different devices ({' and '.join(devices)}): this compares machines, not kernels" if len(devices) > 1 else "two runs"
    title = "\n".join([*lines, f"{_name(what)}; {kind}; unpaired: what drifted between the runs is in no interval"])
    return title, found, agreement(records[0], records[1]) if what == "kernel" else None


def _name(what: str) -> str:
    return "cold kernel time" if what == "kernel" else "warm kernel time" if what == "warm" else f"{what} cost"


def _table(found: list[Comparison]) -> Table:
    one = len({(c.a, c.b) for c in found}) == 1
    two = any(c.state in STATES for c in found)
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("workload", no_wrap=True)
    if not one:
        table.add_column("implementation", overflow="fold")
    if two:
        table.add_column("clock", no_wrap=True)
    for name in ("A us", "B us", "A / B", "interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("A is", no_wrap=True)
    table.add_column("why", overflow="fold")
    for c in found:
        names = [] if one else [escape(c.a if c.a == c.b else f"{c.a} : {c.b}")]
        names += [c.state] if two else []
        figures = ["" if v is None else f"{v:.4g}" for v in (c.a_us, c.b_us)] + ["" if c.ratio is None else f"{c.ratio:.3f}"]
        interval = "" if c.low is None or c.high is None else f"{c.low:.3f} to {c.high:.3f}"
        note = c.reason or ("paired" if c.paired else "")
        style = STYLES[c.verdict]
        table.add_row(escape(c.workload), *names, *figures, interval, f"[{style}]{c.verdict}[/]" if style else c.verdict, escape(note))
    return table
