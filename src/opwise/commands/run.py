"""`opwise run`: checks, times, stores, prints."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Annotated, Any

import typer

from opwise import library
from opwise.commands.console import (
    Device,
    Filters,
    Json,
    Out,
    SetName,
    Variants,
    With,
    none_left_out,
    print_records,
    print_roofs,
    read_recording,
    read_run,
    refuse,
    stderr,
    stdout,
    where,
)
from opwise.commands.executors import GpuModel, Gpus, Ready, Scheduler, Share, ready
from opwise.commands.progress import carry_out
from opwise.report import overview
from opwise.run_files import run_name
from opwise.runner import SETS, UnknownName
from opwise.runner.processes import MOST
from opwise.runner.session import Session
from opwise.runner.stored_plan import CannotResume
from opwise.tuning.standing import told

RUN_EXAMPLES = (
    "Examples:  opwise run  ·  opwise run softmax triton_jit  ·  opwise run 'softmax/4096x4096/*' --variants  ·  "
    "opwise run matmul/512x512x512/float16 --json  ·  opwise run --set grid --brief  ·  opwise run matmul --processes 3  ·  "
    "opwise run softmax --with my_softmax.py  ·  opwise run matmul --set layers --brief --facts  ·  "
    "opwise run matmul/4096x4096x4096/float16 --energy  ·  "
    "opwise run --recorded recording.json  ·  opwise run --gpus all  ·  "
    "opwise run --scheduler tcp://head:8786 --gpu-model H200  ·  opwise run --resume 20261121T140910Z"
)


def run(
    filters: Filters = None,
    set_name: SetName = None,
    variants: Variants = False,
    device: Device = None,
    out: Out = Path("results"),
    own_files: With = None,
    first_call: Annotated[bool, typer.Option("--first-call", help="Also time the first call, compiler caches empty and full.")] = False,
    brief: Annotated[
        bool, typer.Option("--brief", help="Only cold times and call costs, in a quarter of the time: enough for `opwise choose`.")
    ] = False,
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", help=f"Run each job in N fresh processes, 1 to {MOST}; 3 can settle a ranking.")
    ] = 1,
    facts: Annotated[
        bool,
        typer.Option(
            "--facts",
            help="Also test bit by bit whether results are repeatable and batch-invariant; adds matmul's variants `invariant`.",
        ),
    ] = False,
    energy: Annotated[
        bool,
        typer.Option("--energy", help="Also measure mJ a launch, pJ a flop or byte and the idle W, by NVML's counter: 3 to 15 s a cell."),
    ] = False,
    as_json: Json = False,
    gpus: Gpus = None,
    share: Share = False,
    scheduler: Scheduler = None,
    gpu_model: GpuModel = None,
    recorded: Annotated[
        Path | None, typer.Option("--recorded", metavar="FILE", help="Instead of a set: the calls of a program, from `opwise record`.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Finish a stored run that was stopped: a file or part of its name.")
    ] = None,
) -> None:
    """Check every implementation, time it interleaved with the others, store the records, print a table per op.

    `cold us` is the GPU time of a launch from a cold L2 at full clock. `capped us` is the same for launches back to back, where the power
    cap lowers the clock. `fastest` is fastest or tied in both; else the rank names the state.
    """
    if set_name is not None and set_name not in SETS:
        refuse(f"--set {set_name!r} is unknown: known are {', '.join(SETS)}")
    if scheduler and first_call:
        refuse("--first-call is measured on this machine: run it there, or on one of the cluster's, without --scheduler")
    if facts and scheduler:
        refuse("--facts is tested on this machine: run it there, or on one of the cluster's, without --scheduler")
    if energy and (scheduler or gpus):
        refuse("--energy is measured on one GPU of this machine: leave out --scheduler and --gpus; --device cuda:1 names another one")
    if not 1 <= processes <= MOST:
        refuse(f"--processes {processes} is given, 1 to {MOST} are taken")
    _alone(processes, gpus, scheduler)
    asked = bool(filters or set_name or variants or brief or facts or energy or recorded or processes > 1)
    path = _resumed_path(resume, out, asked) if resume else None
    if recorded is not None:
        filters = [*(filters or []), *_called(recorded, bool(set_name))]
    with ready(device, own_files, gpus_=gpus, scheduler=scheduler, gpu_model=gpu_model, share=share) as here:
        on_gpu = here.survey.device != "cpu"
        if not on_gpu and not as_json:
            stderr.print("No GPU here: kernels run in stand-ins or are only compiled; nothing is timed.", style="yellow", highlight=False)
        if facts and not on_gpu:
            stderr.print("No GPU here: --facts finds nothing out.", style="yellow", highlight=False)
        if energy and not on_gpu:
            stderr.print("No GPU here: --energy measures nothing.", style="yellow", highlight=False)
        for line in told(here.survey.facts) if on_gpu else ():
            stderr.print(line, highlight=False, markup=False, soft_wrap=True)
        set_name = set_name or ("core" if on_gpu else "smoke")
        if path:
            session = _resumed(here, path)
        else:
            session = _planned(here, filters or [], set_name, out, variants=variants, brief=brief, facts=facts, energy=energy,
                               processes=processes)  # fmt: skip
        _alone(session.processes, gpus, scheduler)
        session.executor, session.shared = here.executor, here.shared
        if here.shared and session.stored_plan is not None and session.stored_plan.energy:
            refuse(f"--energy is what the whole GPU draws, and {here.shared} computes on it: wait for it, or leave out --energy")
        try:
            interrupted = carry_out(session, first_call and on_gpu)
        except CannotResume as error:
            refuse(str(error))
        print_records(session.records, as_json, title=where(session.records))  # within: workers end meanwhile
        if session.path is not None and not as_json:
            print_roofs(session.path, session.records)
            stdout.print(f"stored in {session.path}", highlight=False, soft_wrap=True)
    _end(session, interrupted, show_shipped=not on_gpu and not as_json)


def _alone(processes: int, gpus: str | None, scheduler: str | None) -> None:
    if processes > 1 and (gpus or scheduler):
        refuse("--processes repeats jobs on one GPU: leave out --gpus and --scheduler")


def _planned(here: Ready, filters: list[str], set_name: str, out: Path, **switches: Any) -> Session:
    """switches: of Session.planned."""
    try:
        session = Session.planned(here.survey, filters, set_name, timed=here.survey.device != "cpu", out=out, **switches)
    except UnknownName as error:
        refuse(str(error))
    if not session.jobs:
        refuse(f"nothing in set {set_name!r} fits {' '.join(filters)!r}: another --set, or a workload spelled out, may")
    none_left_out(here.survey, session.jobs)
    return session


def _called(path: Path, set_given: bool) -> list[str]:
    """The workloads of a recorded program that are measured, and a word on the others."""
    if set_given:
        refuse("--recorded and --set both say what to measure: leave one of them out")
    found = read_recording(path)
    taken = [call for call in found.calls if call.workload and 0 not in call.shape and (call.contiguous or call.transposed)]
    if not taken:
        refuse(f"--recorded {path}: none of its {len(found.calls)} kinds of calls is of contiguous tensors that the ops take")
    workloads = list(dict.fromkeys(str(call.workload) for call in taken))
    left = f"{len(found.calls) - len(taken)} of {len(found.calls)}"
    stderr.print(f"{path}: {len(workloads)} workloads; {left} kinds of calls are not measured, as they are strided or no calls of an op",
                 highlight=False, soft_wrap=True, markup=False)  # fmt: skip
    return workloads


def _resumed_path(run: str, out: Path, asked: bool) -> Path:
    if asked:
        refuse("--resume takes filters, --set, --variants, --brief, --facts, --energy and --processes from the run that it finishes: leave "
               "them out")  # fmt: skip
    try:
        return library.find(run, out)
    except library.NoSuchRun as error:
        refuse(str(error))


def _resumed(here: Ready, path: Path) -> Session:
    try:
        session = Session.resumed(here.survey, path)
    except (CannotResume, OSError) as error:
        refuse(str(error))
    left = f"{session.cells} cells are left" if session.jobs else "nothing is left to do"
    stderr.print(f"{path.stem}: {len(session.records)} cells are there, {left}", highlight=False, soft_wrap=True)
    return session


def _end(session: Session, interrupted: bool, show_shipped: bool) -> None:
    """The last lines, and the exit status."""
    if interrupted or session.stranded:
        why = session.stranded or "interrupted"
        rest = f": opwise run --resume {session.path.stem} finishes it" if session.path is not None else ""
        stderr.print(f"{why}; {len(session.records)} finished records are kept{rest}", style="yellow", highlight=False, soft_wrap=True)
        raise typer.Exit(130 if interrupted else 1)
    if show_shipped:
        _show_shipped({r.op for r in session.records})
    if session.trouble:
        stderr.print(f"{len(session.trouble)} of {len(session.records)} cells are wrong or failed", style="bold red")
        raise typer.Exit(1)


def _show_shipped(ops: Set[str]) -> None:
    """Of the ops that were run."""
    try:
        path = library.find(None, library.shipped(), label="core")
    except library.NoSuchRun:
        return
    records = read_run(path)
    stdout.rule("not measured here: the newest whole run that ships with opwise")
    stdout.print(where(records), style="bold", highlight=False, markup=False)
    stdout.print(overview.table([r for r in records if r.op in ops]))
    stdout.print(f"all of it: opwise show {run_name(path)}", highlight=False, soft_wrap=True)
