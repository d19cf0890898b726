"""The report of `opwise profile`, as tables and lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from opwise.profiling.ncu import Counter
from opwise.profiling.report import NEEDS_A_GPU, Report
from opwise.profiling.rows import KernelRow

AGREE = 0.03  # between the clock and the profiler, of a kernel long against the microsecond that an event pair adds
MOST_OPERATORS = 12
MOST_PLACES = 20


def show(report: Report, console: Console) -> None:
    for line in head(report):
        console.print(line, highlight=False, soft_wrap=True)
    if report.kernels:
        console.print(kernels(report))
        console.print()
    console.print(stages(report))
    if report.operators:
        console.print()
        console.print(operators(report))
    if report.allocations:
        console.print()
        console.print(allocations(report))
    elif report.request.memory:
        console.print("no call took memory from torch's allocator", highlight=False)
    for line in notes(report):
        console.print(line, highlight=False, soft_wrap=True)


def head(report: Report) -> Iterator[str]:
    r = report.record
    verdict = f"{r.status}, {r.error_ratio:.2f} of the error bound" if r.error_ratio is not None else r.status
    yield f"[bold]{escape(r.implementation)} at {r.workload}[/], on {escape(r.device)}: {verdict}"
    if r.status == "wrong":
        yield f"[bold red]wrong[/]: {escape(r.reason)}. What follows is the profile of a wrong kernel"


def kernels(report: Report) -> Table:
    """A row per kernel and heat, and for each heat the whole launch with its rates."""
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("kernel", overflow="fold", min_width=16)
    for name in (
        "L2",
        "a launch",
        "device us",
        "from",
        "to",
        "API us",
        "grid",
        "block",
        "regs",
        "shared B",
        "occ %",
        "GB/s",
        "TFLOP/s",
        "SOL",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for heat in ("cold", "warm"):
        rows = [row for row in report.kernels if row.heat == heat]
        for row in rows:
            table.add_row(*kernel_cells(row))
        launch = report.launch(heat)
        if launch is not None:
            us = launch.device_us
            sol = f"{report.record.limit_us / us:.2f}" if report.record.limit_us and heat == "cold" else ""
            rates = (f"{report.bytes / us / 1e3:.0f}", f"{report.flops / us / 1e6:.2f}", sol)
            whole = (f"{us:.2f}", f"{launch.low_us:.2f}", f"{launch.high_us:.2f}")
            table.add_row("[bold]the launch[/]", heat, f"of {launch.count}", *whole, *[""] * 6, *rates, end_section=True)
    return table


def kernel_cells(row: KernelRow) -> list[str]:
    def of(value: object, form: str = "{}") -> str:
        return "" if value is None else form.format(value)

    sizes = ["x".join(map(str, size)) if size else "" for size in (row.grid, row.block)]
    times = [f"{x:.2f}" for x in (row.device_us, row.low_us, row.high_us)]
    return [escape(row.name), row.heat, f"{row.each_launch:g}", *times, of(row.api_us, "{:.1f}"), *sizes, of(row.registers),
            of(row.shared_bytes), of(row.occupancy_percent, "{:.0f}"), "", "", ""]  # fmt: skip


def stages(report: Report) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("stage")
    for name in ("times", "CPU us"):
        table.add_column(name, justify="right")
    for row in report.stages:
        table.add_row(row.stage, str(row.count), f"{row.cpu_us:.1f}")
    return table


def operators(report: Report) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("torch operator")
    for name in ("a call", "CPU us a call", "itself us"):
        table.add_column(name, justify="right")
    for row in report.operators[:MOST_OPERATORS]:
        table.add_row(escape(row.name), f"{row.each_call:g}", f"{row.cpu_us:.1f}", f"{row.self_us:.1f}")
    return table


def allocations(report: Report) -> Table:
    table = Table(show_edge=False, pad_edge=False, title="allocations within the calls", title_justify="left")
    for name in ("stage", "place", "operator"):
        table.add_column(name, overflow="fold")
    for name in ("on", "times", "bytes", "in all", "still held"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.allocations[:MOST_PLACES]:
        numbers = (str(row.count), f"{row.bytes:,}", f"{row.total_bytes:,}", str(row.held))
        table.add_row(row.stage, escape(row.place), escape(row.operator), row.device, *numbers)
    return table


def notes(report: Report) -> Iterator[str]:
    record, apart = report.record, report.apart()
    if apart is not None and record.kernel_cold_us is not None:
        clock = record.kernel_cold_us.median
        style = "" if abs(apart) <= AGREE else "[yellow]"
        state = " at full clock" if record.kernel_capped_us else ""
        yield f"{style}cold{state}: {clock:.2f} us by the clock of `opwise run`, the profiler {100 * apart:+.1f} %{'[/]' if style else ''}"
        if abs(apart) > AGREE:
            yield ("  the clock counts what a launch costs the GPU around its kernels too, some microseconds at most, which is much of a "
                   "short one; docs/profiling.md has the other causes")  # fmt: skip
    if (capped := record.kernel_capped_us) is not None:
        yield f"power-capped: {capped.median:.2f} us by the clock of `opwise run`, of launches back to back"
    if report.on_gpu and not report.kernels:
        yield "[yellow]no kernel is in the profiler's trace[/]: CUPTI recorded none; another profiler, or the container, may hold it back"
    for row in report.kernels:
        if row.count % row.launches:
            told = f"{row.launches} launches from a {row.heat} L2 show {row.count} times {escape(row.name)}"
            yield f"[yellow]{told}[/]: the trace lacks some, or the launches are not alike"
    costs = {"launch": record.launch_us, "call": record.call_us}
    told = ", ".join(f"{name} {interval.median:.2f} us" for name, interval in costs.items() if interval is not None)
    if told:
        yield f"CPU time without the profiler: {told}"
    if record.stand_in not in (None, "cpu"):
        yield f"[yellow]{escape(str(record.stand_in))}[/]: a stand-in ran the kernel, so no time here says anything about a GPU"
    if not report.on_gpu:
        yield f"[yellow]needs a GPU[/]: {NEEDS_A_GPU}"


def counters(found: Sequence[Counter]) -> Table:
    """Nsight Compute's counters, a column per kernel."""
    names = list(dict.fromkeys(counter.kernel for counter in found))
    table = Table(show_edge=False, pad_edge=False, title="Nsight Compute, one launch, caches flushed", title_justify="left")
    table.add_column("counter", no_wrap=True)
    for name in names:
        table.add_column(escape(name), justify="right", overflow="fold")
    for metric in dict.fromkeys(counter.metric for counter in found):
        of_metric = {counter.kernel: counter for counter in found if counter.metric == metric}
        label = next(iter(of_metric.values())).name
        table.add_row(label, *(cell(of_metric[name]) if name in of_metric else "" for name in names))
    return table


def cell(counter: Counter) -> str:
    value = f"{counter.value:,.2f}".rstrip("0").rstrip(".") if isinstance(counter.value, (int, float)) else counter.value
    return escape(f"{value} {counter.unit}".rstrip())
