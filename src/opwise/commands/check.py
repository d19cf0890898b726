"""`opwise check`: right or wrong, of every op in every backend, on the GPU or in what stands in for one. Nothing is timed or stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from opwise.backends import BACKENDS
from opwise.backends.cuda_on_cpu import NOT_RUN, STAND_IN
from opwise.commands.console import (
    Device,
    Filters,
    Json,
    SetName,
    Variants,
    With,
    chosen_device,
    print_records,
    refuse,
    stderr,
    stdout,
    surveyed,
    where,
)
from opwise.commands.progress import carry_out
from opwise.ops import OPS
from opwise.ops.spec import DTYPES
from opwise.record import Record
from opwise.report.tables import STYLES, only_compiled
from opwise.runner import SETS, Job, UnknownName
from opwise.runner.session import Session

EXAMPLES = (
    "Examples:  opwise check  ·  opwise check softmax  ·  opwise check gelu --variants  ·  "
    "opwise check --backend torch_inline --backend cupy_raw --dtype bfloat16  ·  opwise check softmax --with my_softmax.py"
)
BAD = ("wrong", "failed", "timeout")
Backends = Annotated[list[str] | None, typer.Option("--backend", help=f"Only this one; may be repeated. Known: {', '.join(BACKENDS)}.")]
Dtypes = Annotated[list[str] | None, typer.Option("--dtype", help=f"Only this one; may be repeated. Known: {', '.join(DTYPES)}.")]


def check(
    filters: Filters = None,
    backend: Backends = None,
    dtype: Dtypes = None,
    set_name: SetName = None,
    variants: Variants = False,
    device: Device = None,
    own_files: With = None,
    as_json: Json = False,
) -> None:
    """Only right or wrong: against the float64 reference, on easy and on hard inputs, and against each other. Stores nothing.

    Where there is no GPU, kernels run in stand-ins: Triton's interpreter, Numba's simulator, and for CUDA C++ a CPU compiler that takes
    the same sources. Exit status 1 where something is wrong.
    """
    name, set_name = chosen_device(device), set_name or "smoke"
    if set_name not in SETS:
        refuse(f"--set {set_name!r} is unknown: known are {', '.join(SETS)}")
    _known("--backend", backend, (*BACKENDS, *(path.stem for path in own_files or ())))
    _known("--dtype", dtype, DTYPES)
    found = surveyed(name, own_files)
    try:
        session = Session.planned(found, filters or [], set_name, variants=variants, timed=False, out=None)
    except UnknownName as error:
        refuse(str(error))
    session.jobs = _narrowed(session.jobs, backend, dtype)
    if not session.jobs:
        refuse(f"nothing in set {set_name!r} fits what was asked for: another --set, or a workload spelled out, may")
    interrupted = carry_out(session)
    if as_json:
        print_records(session.records, as_json, title="")
    else:
        _print(session.records)
    if interrupted:
        stderr.print(f"interrupted: {len(session.records)} finished checks are shown", style="yellow")
        raise typer.Exit(130)
    if session.trouble:
        stderr.print(f"{len(session.trouble)} of {len(session.records)} checks say wrong or failed", style="bold red")
        raise typer.Exit(1)


def _known(option: str, given: list[str] | None, known: Iterable[str]) -> None:
    for name in given or ():
        if name not in known:
            refuse(f"{option} {name!r} is unknown: known are {', '.join(known)}")


def _narrowed(jobs: Sequence[Job], backends: list[str] | None, dtypes: list[str] | None) -> list[Job]:
    kept = [job for job in jobs if not dtypes or job.workload.dtype in dtypes]
    if backends:
        kept = [job.without(n for n in job.implementations if n.split("/")[0] not in backends) for job in kept]
    return [job for job in kept if job.implementations]


def _print(records: Sequence[Record]) -> None:
    stdout.print(where(list(records)), style="bold", highlight=False, markup=False)
    stdout.print(grid(records))
    for line in notes(records):
        stdout.print(line, highlight=False, soft_wrap=True)


def grid(records: Sequence[Record]) -> Table:
    """Op by backend: what became of all its checks, and the largest error over its bound."""
    shown = Table(title="largest error / bound: over 1 is wrong", title_justify="left", show_edge=False, pad_edge=False)
    names = {r.backend for r in records}
    backends = [name for name in BACKENDS if name in names] + sorted(names - set(BACKENDS))
    for name in ("op", *backends):
        shown.add_column(name)
    ops = {r.op for r in records}
    for op in [name for name in OPS if name in ops] + sorted(ops - set(OPS)):
        shown.add_row(escape(op), *(cell([r for r in records if (r.op, r.backend) == (op, name)]) for name in backends))
    return shown


def cell(records: Sequence[Record]) -> str:
    """One pair's: `wrong` outweighs `ok`, which outweighs what was not run."""
    bad = [r for r in records if r.status in BAD]
    right = [r for r in records if r.status == "ok"]
    if bad:
        return f"[{STYLES[bad[0].status]}]{bad[0].status}, {len(bad)} of {len(records)}[/]"
    if right:
        how = "ok (stand-in)" if any(r.stand_in for r in right) else "ok"
        ratio = max((r.error_ratio for r in right if r.error_ratio is not None), default=0.0)
        return f"[{STYLES['ok']}]{how} {ratio:.2f}[/]"
    if any(only_compiled(r) for r in records):
        return "[yellow]compiled, not run[/]"
    return "n/a"


def notes(records: Sequence[Record]) -> list[str]:
    """A line a problem with its reason, then what ran in a stand-in, and what no stand-in runs."""
    lines = [f"[bold red]{r.status}[/]  {escape(r.implementation)}  {escape(str(r.workload))}: {escape(r.reason)}" for r in records
             if r.status in BAD]  # fmt: skip
    absent = {(r.backend, r.status, r.reason): r for r in records if r.status in ("unavailable", "unsupported")}
    for r in absent.values():
        told = "compiled, not run" if only_compiled(r) else r.status
        subject = r.backend if r.status == "unavailable" else f"{r.implementation}  {r.workload}"
        lines.append(f"[yellow]{told}[/]  {escape(subject)}: {escape(r.reason)}")
    stand_ins = {r.backend: r.stand_in for r in records if r.stand_in}
    if stand_ins:
        lines.append("stand-ins: " + ", ".join(f"{backend} in {name}" for backend, name in stand_ins.items()))
    of_cuda = [name for name, stand_in in stand_ins.items() if stand_in == STAND_IN]
    for op, (kernels, reason) in NOT_RUN.items():
        if of_cuda and any(r.op == op for r in records):
            lines.append(f"compiled, not run  {' and '.join(of_cuda)}: {kernels} need {reason}; `make test` compiles them")
    return lines
