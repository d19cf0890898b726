"""`opwise profile`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from opwise import own
from opwise.backends import BACKENDS
from opwise.commands.console import Device, With, chosen_device, ending, fail, named_files, refuse, stderr, stdout
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.profiling import ncu as nsight
from opwise.profiling import stacks, tables
from opwise.profiling.blocking import blocked
from opwise.profiling.report import Report, Request, profiled
from opwise.report.html import MissingExtra
from opwise.runner import Patience, Worker, WorkerLost

EXAMPLES = (
    "Examples:  opwise profile triton_jit/softmax softmax/4096x4096/float16  ·  "
    "opwise profile torch_eager/mean 4096x4096/float32 --trace mean.json.gz --stacks mean.html  ·  "
    "opwise profile cupy_raw/gelu gelu/8192x8192/float16 --ncu  ·  opwise profile numba_cuda/matmul 512x512x512/float32 --blocking  ·  "
    "opwise profile my_triton/softmax 4096x4096/float16 --with my_triton.py"
)
NAME_HELP = "An implementation: triton_jit/softmax, torch_eager/square:pow."
WORKLOAD_HELP = "Its shape and dtype: softmax/4096x4096/float16, or without the op."
TRACES = (".json", ".json.gz")
Calls = Annotated[int, typer.Option(min=1, max=1000, help="Calls in the trace, besides cold and warm launches.")]
TraceFile = Annotated[Path | None, typer.Option("--trace", metavar="FILE", help="A Chrome trace for ui.perfetto.dev; compressed as .gz.")]
StacksFile = Annotated[
    Path | None, typer.Option("--stacks", metavar="FILE", help="Flame graph: .html, .svg, .png; .txt: collapsed stacks for speedscope.app.")
]
Memory = Annotated[bool, typer.Option("--memory", help="Memory that calls take from torch's allocator, by place.")]
Ncu = Annotated[bool, typer.Option("--ncu", help="Speed-of-Light and memory counters of Nsight Compute, where it is installed.")]
Blocking = Annotated[bool, typer.Option("--blocking", help="Only launch, synchronously, so that an error names its kernel.")]


def profile(
    implementation: Annotated[str, typer.Argument(metavar="IMPLEMENTATION", help=NAME_HELP)],
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", help=WORKLOAD_HELP)],
    calls: Calls = 10,
    trace: TraceFile = None,
    stacks_file: StacksFile = None,
    memory: Memory = False,
    ncu: Ncu = False,
    blocking: Blocking = False,
    own_files: With = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable: one object.")] = False,
) -> None:
    """Show where the time of one implementation goes: kernels with grid, registers and rates, stages of a call, operators.

    Without a GPU the CPU's profiler shows operators, and the output says what needs a GPU.
    """
    name, files = chosen_device(device), named_files(own_files)
    wanted = workload_of(workload, op_of(implementation, files))
    if blocking:
        if trace or stacks_file or memory or ncu:
            refuse("--blocking makes every launch wait, which invalidates a profile: leave the other options out")
        _blocking(implementation, wanted, name, calls, as_json, files)
        return
    report = _profiled(Request(implementation, str(wanted), name, calls, trace, stacks_file, memory), files)
    record = report.record
    if record.status not in ("ok", "wrong"):
        fail(f"{implementation} cannot be profiled at {wanted}: {record.status}: {record.reason}")
    counters, refused = _counters(implementation, wanted, name, files) if ncu else ([], "")
    if as_json:
        data = report.as_dict() | ({"ncu": [dataclasses.asdict(c) for c in counters], "ncu_refused": refused} if ncu else {})
        typer.echo(json.dumps(data, default=str))
    else:
        tables.show(report, stdout)
        if counters:
            stdout.print()
            stdout.print(tables.counters(counters))
        for what, path in (("trace", trace), ("stacks", stacks_file)):
            if path is not None:
                stdout.print(f"{what} in {path}", highlight=False, soft_wrap=True, markup=False)
    if refused:
        fail(f"--ncu: {refused}")
    if record.status == "wrong":
        raise typer.Exit(1)


def op_of(implementation: str, files: Mapping[str, Path] | None = None) -> str:
    """The op of an implementation's name, of the suite or of the user's `files`; ends the command where that is no name."""
    backend, _, rest = implementation.partition("/")
    op, known = rest.partition(":")[0], (*BACKENDS, *(files or {}))
    if backend not in known or op not in OPS:
        refuse(f"{implementation!r} is no implementation: write backend/op or backend/op:variant, as in triton_jit/softmax; "
               f"backends are {', '.join(known)}, and what --with names; ops {', '.join(OPS)}")  # fmt: skip
    return op


def workload_of(text: str, op: str) -> Workload:
    """`softmax/4096x4096/float16` or `4096x4096/float16`; ends the command where that is no workload of the op."""
    try:
        wanted = Workload.parse(text if text.count("/") == 2 else f"{op}/{text}")
    except ValueError as error:
        refuse(f"{error}; {text!r} was given")
    spec = OPS[op]
    if wanted.op != op:
        refuse(f"{wanted} is a workload of {wanted.op}, the implementation is of {op}: give {op}/SHAPE/DTYPE")
    ranks = sorted({len(w.shape) for group in spec.workloads.values() for w in group})
    if wanted.dtype not in spec.dtypes or len(wanted.shape) not in ranks:
        example = next(iter(spec.workloads["core"]))
        refuse(f"{wanted} is no workload of {op}: {' or '.join(map(str, ranks))} sizes and one of {', '.join(spec.dtypes)} are taken, "
               f"as in {example}")  # fmt: skip
    if 0 in wanted.shape:
        refuse(f"{wanted} has no elements, so nothing is launched for it: take a shape without a 0")
    return wanted


def _profiled(request: Request, files: Mapping[str, Path]) -> Report:
    ending("--trace", request.trace, TRACES)
    ending("--stacks", request.stacks, stacks.FORMATS)
    try:
        if request.stacks is not None and request.stacks.suffix not in stacks.TEXT:
            (stacks.plotly if request.stacks.suffix == stacks.PAGE else stacks.drawer)()
    except MissingExtra as error:
        refuse(f"{error}; or name the file .txt, for collapsed stacks")
    try:
        with stderr.status(f"profiling {request.implementation} at {request.workload}"), Worker(request.device, own.setup(files)) as worker:
            report: Report = worker.ask("apply", (profiled, request), Patience())
    except WorkerLost as lost:
        fail(f"{request.implementation} at {request.workload}: {lost.reason}; --blocking finds the kernel of a fault")
    return report


def _counters(implementation: str, wanted: Workload, device: str, files: Mapping[str, Path]) -> tuple[Sequence[nsight.Counter], str]:
    if device == "cpu":
        return [], "counters are a GPU's: run it where there is one"
    try:
        with stderr.status("Nsight Compute runs the launch again for each group of counters"):
            return nsight.counted(implementation, str(wanted), device, files=tuple(files.values())), ""
    except nsight.NcuRefused as refused:
        return [], str(refused)


def _blocking(implementation: str, wanted: Workload, device: str, calls: int, as_json: bool, files: Mapping[str, Path]) -> None:
    with stderr.status(f"launching {implementation} at {wanted}, one launch at a time"):
        outcome = blocked(implementation, str(wanted), device, calls, own.setup(files))
    if as_json:
        data: dict[str, Any] = dataclasses.asdict(outcome)
        typer.echo(json.dumps(data))
    elif not outcome.error:
        told = f": {', '.join(outcome.kernels)}" if outcome.kernels else ""
        stdout.print(f"{implementation} at {wanted}: {outcome.launches} launches, each waited for, none failed{told}", highlight=False,
                     soft_wrap=True, markup=False)  # fmt: skip
        if device == "cpu":
            stdout.print("[yellow]needs a GPU[/]: the names of the kernels, and faults of theirs", highlight=False)
        elif outcome.note:
            stdout.print(outcome.note, highlight=False, soft_wrap=True, markup=False)
    if outcome.error:
        fail(outcome.line + (f" ({outcome.note})" if outcome.note and device != "cpu" else ""))
