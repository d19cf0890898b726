"""`opwise timeline`."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from opwise import own
from opwise.commands.console import Device, With, chosen_device, ending, fail, named_files, refuse, stderr, stdout
from opwise.commands.profile import TRACES, op_of
from opwise.ops.spec import Workload
from opwise.report.html import MissingExtra
from opwise.runner import WorkerLost
from opwise.timeline import charts, container, counters, drawing, hta, picture, recording, tables
from opwise.timeline import ranks as jobs
from opwise.timeline import trace as traces
from opwise.timeline.analysis import Timeline, as_data
from opwise.timeline.container import NotATrace
from opwise.timeline.difference import difference
from opwise.timeline.idle import KERNEL_WAIT_US
from opwise.timeline.kinds import MOST_KERNELS
from opwise.timeline.launches import DEFAULTS, Cutoffs

EXAMPLES = (
    "Examples:  opwise timeline triton_jit/softmax softmax/1024x1024/float16 --plot softmax.html  ·  "
    "opwise timeline cupy_raw/gelu gelu/1024x1024/float32 --against torch_eager/gelu --calls 200  ·  "
    "opwise timeline --from trace.json.gz --within 'ProfilerStep#3'  ·  "
    "opwise timeline --ranks traces/ --charts job.html  ·  opwise timeline --from a.json --against b.json --json"
)


def timeline(
    implementation: Annotated[str | None, typer.Argument(help="Implementation: triton_jit/softmax, torch_eager/square:pow.")] = None,
    workload: Annotated[str | None, typer.Argument(help="Its shape and dtype: softmax/1024x1024/float16.")] = None,
    calls: Annotated[int, typer.Option(min=1, help="Number of calls to record, back to back.")] = 1000,
    against: Annotated[str | None, typer.Option(metavar="B", help="Compare with this implementation; with --from, trace.")] = None,
    source: Annotated[Path | None, typer.Option("--from", metavar="TRACE", help="Analyse a trace that any program recorded: .json, "
                                                ".json.gz.")] = None,
    ranks: Annotated[list[Path] | None, typer.Option(metavar="TRACE", help="Traces of a job's ranks, or a folder of them.")] = None,
    within: Annotated[str | None, typer.Option(metavar="LABEL", help="Only launches in ranges whose name contains this.")] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Keep the trace, for Perfetto: .json or .json.gz.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="The picture: .html, .svg or .png.")] = None,
    charts_file: Annotated[Path | None, typer.Option("--charts", metavar="FILE", help="Kinds, kernels and the distributions of launches: "
                                                     ".html, .svg or .png.")] = None,
    counters_file: Annotated[Path | None, typer.Option("--counters", metavar="FILE", help="The trace with queue length and bandwidth over "
                                                       "time in it: .json or .json.gz.")] = None,
    kernels: Annotated[int, typer.Option(min=1, metavar="N", help="How many kernels of a kind have a row; the rest are others.")] =
    MOST_KERNELS,
    call_cutoff: Annotated[float, typer.Option(min=0, metavar="US", help="A launch call above this is an outlier.")] = DEFAULTS.call_us,
    delay_cutoff: Annotated[float, typer.Option(min=0, metavar="US", help="A delay to the start above this is an outlier.")] =
    DEFAULTS.delay_us,
    kernel_wait: Annotated[float, typer.Option(min=0, metavar="US", help="A gap before a queued kernel is kernel wait below this, other "
                                               "from it on.")] = KERNEL_WAIT_US,
    with_hta: Annotated[bool, typer.Option("--hta", help="Holistic Trace Analysis's own figures beside ours (extra: timeline).")] = False,
    own_files: With = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable: a trace a line, then the difference.")] = False,
) -> None:  # fmt: skip
    """Show what the GPU did while one implementation is called: busy, idle by cause, launches, queue, copies.

    A call costs more CPU time under the profiler: use these figures for where time goes, and `opwise run` for how long it takes.
    """
    ending("--plot", plot, drawing.FORMATS)
    ending("--charts", charts_file, drawing.FORMATS)
    ending("--counters", counters_file, TRACES)
    options = {"kernel_wait_us": kernel_wait, "cutoffs": Cutoffs(call_cutoff, delay_cutoff), "most_kernels": kernels}
    if ranks:
        others = {"IMPLEMENTATION": implementation, "--against": against, "--from": source, "--within": within, "--trace": trace,
                  "--plot": plot, "--counters": counters_file, "--hta": with_hta, "--with": own_files}  # fmt: skip
        if named := [name for name, value in others.items() if value]:
            refuse(f"--ranks reads the traces of a job: leave {', '.join(named)} out")
        _job(ranks, options, charts_file, as_json)
        return
    if with_hta and within:
        refuse("--hta and --within exclude each other: HTA reads whole traces")
    with tempfile.TemporaryDirectory(prefix="opwise-timeline-") as folder:
        if source is not None:
            if implementation or trace is not None or own_files:
                refuse("--from analyses a trace that is there: it takes no implementation, no --trace and no --with")
            files = [source, *([Path(against)] if against else [])]
        else:
            files = _recorded(implementation, workload, calls, against, trace, chosen_device(device), Path(folder), own_files)
        found = _read(files, within, options)
        if as_json:
            _print_json(found)
        else:
            _print(found)
        for file, of in zip(files, found, strict=True) if with_hta else ():
            _print_hta(file, of, as_json)
        for i, (file, of) in enumerate(zip(files, found, strict=True)) if counters_file is not None else ():
            _count(file, of, _beside(counters_file or file, i))
    if plot is not None:
        _draw(found, plot)
    if charts_file is not None:
        _chart({t.name: t for t in found}, charts_file)


def _job(given: Sequence[Path], options: Mapping[str, Any], charts_file: Path | None, as_json: bool) -> None:
    try:
        job = jobs.read(given, **options)
    except (NotATrace, OSError) as error:
        refuse(str(error))
    if as_json:
        for data in jobs.job_data(job):
            typer.echo(json.dumps(data))
    else:
        for part in jobs.shown(job):
            stdout.print(part, highlight=False)
    if charts_file is not None:
        _chart({t.name: t for t in job.values()}, charts_file)


def _recorded(
    implementation: str | None, workload: str | None, calls: int, against: str | None, trace: Path | None, device: str, folder: Path,
    own_files: list[Path] | None,
) -> list[Path]:  # fmt: skip
    """The files with the traces of one or two implementations; refuses before it records."""
    if implementation is None or workload is None:
        refuse("give IMPLEMENTATION and WORKLOAD, as in triton_jit/softmax softmax/1024x1024/float16, or a trace with --from")
    ending("--trace", trace, TRACES)
    try:
        at = Workload.parse(workload)
    except ValueError as error:
        refuse(str(error))
    names, own_named = [implementation, *([against] if against else [])], named_files(own_files)
    for name in names:
        _known(name, at, own_named)
    kept = [_beside(trace, i) if trace is not None else folder / f"{i}.json" for i in range(len(names))]
    for name, path in zip(names, kept, strict=True):
        with stderr.status(f"recording {calls} calls of {name} at {at}"):
            try:
                recording.recorded(name, at, device, calls, path, own.setup(own_named))
            except WorkerLost as lost:
                fail(f"{name} at {at} was not recorded: {lost.reason}")
    return kept


def _known(name: str, workload: Workload, files: Mapping[str, Path]) -> None:
    if (op := op_of(name, files)) != workload.op:
        refuse(f"{name} is of op {op}, the workload {workload} of op {workload.op}: give a workload {op}/…")


def _beside(trace: Path, i: int) -> Path:
    """The second trace is kept beside the first: softmax.json.gz, softmax-against.json.gz."""
    ending = next(e for e in reversed(TRACES) if trace.name.endswith(e))
    return trace.with_name(trace.name.removesuffix(ending) + "-against" * bool(i) + ending)


def _read(files: Sequence[Path], within: str | None, options: Mapping[str, Any]) -> list[Timeline]:
    found = []
    for i, path in enumerate(files):
        try:
            trace = traces.read(path)
            about = trace.about
            trace = traces.within(trace, within) if within else trace
        except (NotATrace, OSError) as error:
            refuse(str(error))
        name = f"{about['implementation']} at {about['workload']}" if {"implementation", "workload"} <= set(about) else path.name
        calls = trace.about.get("calls")
        side = f"{'AB'[i]}: " if len(files) > 1 else ""
        timeline = Timeline.of(trace, f"{side}{name}", calls if isinstance(calls, int) and calls > 0 else 0, **options)
        if not timeline.has_gpu and not timeline.operators:
            refuse(f"{path} holds no GPU activity (kernel, copy or fill) and no operator: there is nothing to analyse; record with "
                   "ProfilerActivity.CUDA")  # fmt: skip
        found.append(timeline)
    return found


def _print(found: Sequence[Timeline]) -> None:
    for timeline in found:
        calls = f", {timeline.calls} calls" if timeline.calls else ""
        stdout.print(f"{timeline.name}{calls}", style="bold", highlight=False, markup=False, soft_wrap=True)
        for part in tables.shown(timeline):
            stdout.print(part, highlight=False)
        stdout.print()
    if len(found) > 1:
        for part in tables.compared(difference(*found)):
            stdout.print(part, highlight=False)


def _print_json(found: Sequence[Timeline]) -> None:
    for timeline in found:
        if not timeline.has_gpu:
            stderr.print(tables.no_gpu(timeline), highlight=False)
        typer.echo(json.dumps(as_data(timeline)))
    if len(found) > 1:
        typer.echo(json.dumps({"kind": "difference", **dataclasses.asdict(difference(*found))}))


def _print_hta(file: Path, of: Timeline, as_json: bool) -> None:
    if not of.has_gpu:
        return
    try:
        figures = hta.figures(file, of.kernel_wait_us)
    except hta.HtaMissing as missing:
        fail(str(missing))
    if as_json:
        typer.echo(json.dumps({"kind": "hta", "name": of.name, **dataclasses.asdict(figures)}))
        return
    for part in tables.beside_hta(of, figures):
        stdout.print(part, highlight=False)


def _count(file: Path, of: Timeline, path: Path) -> None:
    if not of.has_gpu:
        fail(f"--counters {path}: there is no GPU activity to count")
    try:
        container.write(counters.with_counters(container.document(file)[0], of.trace), path)
    except OSError as error:
        refuse(f"--counters {error}")
    stderr.print(f"written: {path}", highlight=False, soft_wrap=True, markup=False)


def _chart(found: Mapping[str, Timeline], path: Path) -> None:
    drawn = {name: timeline for name, timeline in found.items() if timeline.has_gpu}
    if not drawn:
        fail(f"--charts {path}: there is no GPU activity to draw")
    try:
        charts.write(charts.charts(drawn), path, "opwise timeline: " + ", ".join(drawn))
    except (MissingExtra, OSError) as error:
        refuse(str(error))
    stderr.print(f"written: {path}", highlight=False, soft_wrap=True, markup=False)


def _draw(found: Sequence[Timeline], path: Path) -> None:
    drawn = [timeline for timeline in found if timeline.has_gpu]
    if not drawn:
        fail(f"--plot {path}: there is no GPU activity to draw")
    try:
        drawing.write(picture.panels(drawn), path, "opwise timeline: " + ", ".join(t.name for t in drawn))
    except (MissingExtra, OSError) as error:
        refuse(str(error))
    stderr.print(f"written: {path}", highlight=False, soft_wrap=True, markup=False)
