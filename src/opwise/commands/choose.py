"""`opwise choose`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from opwise import clocks, library
from opwise.choosing.asked import NothingMeasured, check, workload_of
from opwise.choosing.by_energy import ENERGY, measures
from opwise.choosing.query import choose_from, measured
from opwise.choosing.ranking import BASELINE, PURPOSES, Choice, Standing, differ
from opwise.choosing.store import Store, refresh
from opwise.commands.choose_compiled import PURPOSE as COMPILE
from opwise.commands.choose_compiled import WHAT
from opwise.commands.choose_compiled import answer as answer_compiled
from opwise.commands.choose_recorded import answer
from opwise.commands.console import Out, refuse, stderr, stdout, warnings_told
from opwise.ops import OPS
from opwise.report.energy import told
from opwise.runner import WorkerLost

EXAMPLES = (
    "Examples:  opwise choose softmax --shape 4096x4096 --dtype float16  ·  opwise choose matmul --shape 16x4096x4096 --dtype bfloat16 "
    "--for graph  ·  opwise choose softmax --shape 4096x4096 --dtype bfloat16 --for compile  ·  opwise choose matmul --shape "
    "4096x4096x4096 --dtype float16 --for energy  ·  opwise choose gelu --shape 3000x5000 "
    "--dtype float32 --device nvidia-h200 --json  ·  opwise choose --recorded recording.json --device h100"
)


def choose(
    op: Annotated[str | None, typer.Argument(help=f"One of {', '.join(OPS)}.")] = None,
    shape: Annotated[str | None, typer.Option(help="Sizes, such as 4096x4096; MxKxN for matmul.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, float16, bfloat16; tfloat32 for a matmul whose factors may be rounded to TF32.")
    ] = None,
    layout: Annotated[str, typer.Option(help="Layout of a matmul's factors: NT, TN or TT where one is transposed. x @ w.t() is NT.")] = "",
    purpose: Annotated[
        str, typer.Option("--for", help="; ".join(f"{name}: {what}" for name, what in {**PURPOSES, COMPILE: WHAT}.items()) + ".")
    ] = "stream",
    clock: Annotated[
        str, typer.Option(help="Kernel time that counts. " + "; ".join(f"{name}: {what}" for name, what in clocks.CLOCKS.items()) + ".")
    ] = clocks.BOTH,
    device: Annotated[
        str | None, typer.Option(help="cuda:0, or a recorded GPU such as h200. Default: the GPU here, else the one measured last.")
    ] = None,
    invariant: Annotated[
        bool,
        typer.Option("--invariant", help="Only backends that `opwise run --facts` found batch-invariant there, and the cost of that."),
    ] = False,
    measure: Annotated[bool, typer.Option("--measure", help="Time every backend at this shape first, and store the run.")] = False,
    recorded: Annotated[
        Path | None, typer.Option("--recorded", metavar="FILE", help="Instead of one op: all calls of a program, from `opwise record`.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="TABLE", help="With --recorded: write the choices as a table, for OPWISE_CHOICES.")
    ] = None,
    out: Out = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable: one object.")] = False,
) -> None:
    """Choose the backend for an op at a shape and dtype, with reasons, from recorded runs; or for every call of a recorded program."""
    if recorded is not None and (op or shape or dtype or layout or measure):
        refuse("--recorded asks for all of a program: leave out OP, --shape, --dtype, --layout and --measure; opwise run --recorded "
               "measures")  # fmt: skip
    if recorded is None and write is not None:
        refuse("--write needs --recorded: give both, or neither")
    if purpose == COMPILE and (recorded is not None or measure or invariant):
        refuse(f"--for {COMPILE} times one op and what surrounds it: leave out --recorded, --measure and --invariant")
    if recorded is not None and invariant:
        refuse("--invariant needs one workload: leave out --recorded")
    if recorded is not None and purpose == ENERGY:
        refuse(f"--for {ENERGY} needs one workload: leave out --recorded")
    try:
        check("stream" if purpose == COMPILE else purpose, clock)
        if recorded is not None:
            answer(recorded, device, purpose, clock, out, write, as_json)
            return
        if op is None or shape is None or dtype is None:
            refuse("an op, --shape and --dtype are needed, as in choose softmax --shape 4096x4096 --dtype float16; or --recorded FILE")
        workload = workload_of(op, (shape,), dtype, layout)
        if purpose == COMPILE:
            answer_compiled(workload, device, as_json)
            return
        if measure:
            with stderr.status(f"measuring {workload}"):
                measured(workload, device, out, energy=purpose == ENERGY)
        with warnings_told():
            store = Store.load(runs := library.stored(out), workload.op, purpose)
        choice = choose_from(store, workload, device, purpose, clock, invariant, runs)
    except typer.Exit:  # a RuntimeError, by which a refusal ends the command
        raise
    except NothingMeasured as error:
        stderr.print(f"opwise: {escape(str(error))}", style="bold red", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    except WorkerLost as error:
        stderr.print(f"opwise: {escape(error.reason)}", style="bold red", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    except (ValueError, TypeError, RuntimeError) as error:
        refuse(str(error))
    if as_json:
        typer.echo(json.dumps(as_data(choice)))
        return
    show(choice)


def as_data(choice: Choice) -> dict[str, object]:
    """The choice as JSON values, without the records it comes from."""
    data = dataclasses.asdict(choice)
    for standing in data["ranking"]:
        del standing["from_records"]
    return data


def show(choice: Choice) -> None:
    stdout.print(f"{choice.workload} for {choice.purpose}, on {choice.device}, compute "
                 f"capability {choice.capability}", style="bold", highlight=False, markup=False)  # fmt: skip
    table = Table(show_edge=False, pad_edge=False)
    columns, cells = _by_energy(choice) if choice.purpose == ENERGY else _by_time(choice)
    for name in ("backend", *columns, "x torch eager", "figures"):
        table.add_column(name, justify="left" if name in ("backend", "rank", "figures", ACROSS) else "right")
    eager = next((s for s in choice.ranking if s.backend == BASELINE), None)
    for s in choice.ranking:
        table.add_row(s.backend, *cells(s), f"{eager.counts / s.counts:.2f}" if eager else "n/a", _figures(s))
    stdout.print(table)
    for backend, reason in choice.excluded.items():
        stdout.print(f"{backend} cannot be chosen: {reason}", highlight=False, markup=False, soft_wrap=True)
    stdout.print(choice.why, highlight=False, markup=False, soft_wrap=True)
    if choice.settled:
        stdout.print(choice.settled, highlight=False, markup=False, soft_wrap=True)
    if choice.refresh:
        predicted = choice.chosen.basis == "predicted"
        reasons = "predicted" if predicted else "stale: " + "; ".join(dict.fromkeys(s.stale for s in choice.ranking if s.stale))
        stdout.print(f"{reasons}. On that GPU, this {'measures' if predicted else 'refreshes'} it:\n    {choice.refresh}", style="yellow",
                     highlight=False, markup=False, soft_wrap=True)  # fmt: skip
    elif any(s.capped_only for s in choice.ranking):
        taken = measures(choice.workload) if choice.purpose == ENERGY else refresh([choice.workload])
        stdout.print(f"power-capped only: on that GPU, this takes both states:\n    {taken}", highlight=False, markup=False, soft_wrap=True)


ACROSS = "across runs"
Cells = Callable[[Standing], list[str]]


def _by_time(choice: Choice) -> tuple[list[str], Cells]:
    """The columns that belong to the purpose, and what a row has in them."""
    two = differ(choice.ranking)
    kernel = ("full clock us", "capped us") if two else ("kernel us",)
    across = [ACROSS] if any(s.across for s in choice.ranking) else []

    def cells(s: Standing) -> list[str]:
        kernels = [told(us) for us in ((s.full_us, s.capped_us) if two else (s.kernel_us,))]
        spread = [s.across] if across else []
        return [f"{s.us:.4g}", f"{s.low:.4g} to {s.high:.4g}", *spread, _rank(choice, s), *kernels, f"{s.call_us:.4g}"]

    return [f"{choice.purpose} us", _interval(choice), *across, "rank", *kernel, "call us"], cells


def _by_energy(choice: Choice) -> tuple[list[str], Cells]:
    """The same of a ranking in mJ; the kernel's time stands beside it."""
    two = differ(choice.ranking)

    def cells(s: Standing) -> list[str]:
        states = [told(mj) for mj in (s.full_mj, s.capped_mj)] if two else []
        return [told(s.mj), _rank(choice, s), *states, told(s.kernel_us)]

    return ["energy mJ", "rank", *(["full clock mJ", "capped mJ"] if two else []), "kernel us"], cells


def _interval(choice: Choice) -> str:
    """What the intervals speak of, as a column's name."""
    processes = {r.processes for s in choice.ranking for r in s.from_records}
    several = f"over {processes.pop()} processes" if len(processes) == 1 and 1 not in processes else "within its run"
    return f"95 % interval\n{several}"


def _rank(choice: Choice, s: Standing) -> str:
    if s.backend == choice.backend:
        return "chosen"
    return "tie" if s.tied else f"{s.ratio:.2f}x"


def _figures(s: Standing) -> str:
    return ", ".join([s.basis, *(["power-capped only"] if s.capped_only else []), *(["stale"] if s.stale else [])])
