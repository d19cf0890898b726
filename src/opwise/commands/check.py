"""`opwise check`: right or wrong, of every op in every backend, on the GPU or in what stands in for one. Nothing is timed or stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from opwise.backends import BACKENDS
from opwise.commands.console import (
    Device,
    Filters,
    Json,
    Variants,
    With,
    chosen_device,
    known,
    none_left_out,
    print_records,
    refuse,
    stderr,
    stdout,
    surveyed,
    where,
)
from opwise.commands.progress import carry_out
from opwise.commands.stand_ins import brief, stand_in_lines, stand_in_of
from opwise.ops import OPS
from opwise.ops.spec import DTYPES
from opwise.record import BAD, Record
from opwise.report.tables import STYLES, only_compiled
from opwise.runner import SETS, Job, UnknownName
from opwise.runner.session import Session

EXAMPLES = (
    "Examples:  opwise check  ·  opwise check softmax  ·  opwise check gelu --variants  ·  "
    "opwise check --backend torch_inline --backend cupy_raw --dtype bfloat16  ·  opwise check softmax --with my_softmax.py"
)
Backends = Annotated[list[str] | None, typer.Option("--backend", help=f"Only this one; may be repeated. Known: {', '.join(BACKENDS)}.")]
Dtypes = Annotated[list[str] | None, typer.Option("--dtype", help=f"Only this one; may be repeated. Known: {', '.join(DTYPES)}.")]


def check(
    filters: Filters = None,
    backend: Backends = None,
    dtype: Dtypes = None,
    set_name: Annotated[str, typer.Option("--set", help=f"Workloads: {', '.join(SETS)}.")] = "smoke",
    variants: Variants = False,
    device: Device = None,
    own_files: With = None,
    as_json: Json = False,
) -> None:
    """Check correctness only: against the float64 reference, on easy and on hard inputs, and between implementations. Stores nothing.

    Without a GPU, kernels run in stand-ins: Triton's interpreter, for Numba the kernels' own Python, and for CUDA C++ a CPU compiler that
    takes the same sources. Each cell says which kernels ran, the lines below which of a GPU's kernels did not. Exit status 1 where
    something is wrong.
    """
    name = chosen_device(device)
    if set_name not in SETS:
        refuse(f"--set {set_name!r} is unknown: known are {', '.join(SETS)}")
    known("--backend", backend, (*BACKENDS, *(path.stem for path in own_files or ())))
    known("--dtype", dtype, DTYPES)
    found = surveyed(name, own_files)
    try:
        session = Session.planned(found, filters or [], set_name, variants=variants, timed=False, out=None)
    except UnknownName as error:
        refuse(str(error))
    asked = session.jobs
    session.jobs = _narrowed(asked, backend, dtype)
    if not session.jobs:
        if backend and (cells := _narrowed(asked, None, dtype)):
            ops = ", ".join(dict.fromkeys(job.workload.op for job in cells))
            has = "; ".join(f"{b} has {', '.join(found.catalogue[b].variants) or 'no op'}" for b in backend)
            refuse(f"no kernel of {ops} in {', '.join(backend)}: {has}")
        refuse(f"nothing in set {set_name!r} fits what was asked for: another --set, or a workload spelled out, may")
    none_left_out(found, session.jobs)
    interrupted = carry_out(session)
    if as_json:
        print_records([_with_not_run(r) for r in session.records], as_json, title="")
    else:
        _print(session.records)
    if interrupted:
        stderr.print(f"interrupted: {len(session.records)} finished checks are shown", style="yellow")
        raise typer.Exit(130)
    if session.trouble:
        stderr.print(f"{len(session.trouble)} of {len(session.records)} checks say wrong or failed", style="bold red")
        raise typer.Exit(1)


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
    """Table, op by backend: the outcome of all its checks, the largest error over its bound, and in a stand-in the kernels that ran."""
    shown = Table(title="largest error / bound: over 1 is wrong", title_justify="left", show_edge=False, pad_edge=False)
    names = {r.backend for r in records}
    backends = [name for name in BACKENDS if name in names] + sorted(names - set(BACKENDS))
    stand_ins = {r.backend: r.stand_in for r in records if r.stand_in}
    shown.add_column("op")
    for name in backends:
        shown.add_column("\n".join([name, *([_head(name, stand_ins[name])] if name in stand_ins else [])]))
    for op in _ops(records):
        shown.add_row(escape(op), *(cell([r for r in records if (r.op, r.backend) == (op, name)]) for name in backends))
    return shown


def _head(backend: str, stand_in: str) -> str:
    found = stand_in_of(backend, stand_in)
    return found.brief if found else stand_in


def _ops(records: Sequence[Record]) -> list[str]:
    ops = {r.op for r in records}
    return [name for name in OPS if name in ops] + sorted(ops - set(OPS))


def cell(records: Sequence[Record]) -> str:
    """Cell of one op and backend: `wrong` takes precedence over `ok`, `ok` over what was not run."""
    bad = [r for r in records if r.status in BAD]
    right = [r for r in records if r.status == "ok"]
    if bad:
        return _with_kernels(f"[{STYLES[bad[0].status]}]{bad[0].status}, {len(bad)} of {len(records)}[/]", records)
    if right:
        ratio = max((r.error_ratio for r in right if r.error_ratio is not None), default=0.0)
        return _with_kernels(f"[{STYLES['ok']}]ok {ratio:.2f}[/]", right)
    if any(only_compiled(r) for r in records):
        return "[yellow]compiled, not run[/]"
    return "n/a"


def _with_kernels(verdict: str, records: Sequence[Record]) -> str:
    kernels = [kernel for r in records for kernel in r.kernels]
    return f"{verdict}\n[dim]{escape(brief(kernels, records[0].op))}[/]" if kernels else verdict


def _with_not_run(r: Record) -> Record:
    found = stand_in_of(r.backend, r.stand_in)
    return replace(r, not_run=found.not_run([r.op])) if found else r


def notes(records: Sequence[Record]) -> list[str]:
    """One line per problem with its reason, then one per stand-in."""
    lines = [f"[bold red]{r.status}[/]  {escape(r.implementation)}  {escape(str(r.workload))}: {escape(r.reason)}" for r in records
             if r.status in BAD]  # fmt: skip
    absent = {(r.backend, r.status, r.reason): r for r in records if r.status in ("unavailable", "unsupported")}
    for r in absent.values():
        told = "compiled, not run" if only_compiled(r) else r.status
        subject = r.backend if r.status == "unavailable" else f"{r.implementation}  {r.workload}"
        lines.append(f"[yellow]{told}[/]  {escape(subject)}: {escape(r.reason)}")
    backends: dict[str, list[str]] = {}
    for name, stand_in in {r.backend: r.stand_in for r in records if r.stand_in}.items():
        backends.setdefault(stand_in, []).append(name)
    return lines + stand_in_lines(backends, _ops(records))
