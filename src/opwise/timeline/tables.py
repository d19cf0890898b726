"""The rich tables of `opwise timeline`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from opwise.timeline import idle, queues
from opwise.timeline.analysis import Part, Timeline
from opwise.timeline.copies import Copies
from opwise.timeline.difference import Difference, Row
from opwise.timeline.hta import Figures
from opwise.timeline.kinds import COMPUTATION, KINDS, OTHERS, KernelTimes, Kinds
from opwise.timeline.launches import Cutoffs, Launches
from opwise.timeline.operators import Operator
from opwise.timeline.trace import short

MOST_ROWS = 12
NAME = 60  # characters of a kernel's name where templates must be told apart


def shown(timeline: Timeline) -> Iterator[RenderableType]:
    """All tables of one trace; for a trace without GPU activity its operators."""
    if not timeline.has_gpu:
        yield no_gpu(timeline)
    for line in notes(timeline):
        yield f"[yellow]{escape(line)}[/]"
    if timeline.devices:
        yield heading("busy and idle")
        yield busy(timeline)
    if timeline.kinds:
        yield heading("kinds: what ran at once")
        yield kinds(timeline.kinds)
        yield heading("kernels, copies and fills by kind")
        yield kernel_times({"": timeline.kernel_times})
    if timeline.all_launches:
        yield heading("launches: median, 95th percentile, greatest")
        yield launches(timeline.all_launches, timeline.by_kernel, timeline.cutoffs)
    if timeline.queues:
        yield heading("queue: operations given to a stream that have not begun")
        yield _queues(timeline.queues)
    if timeline.copies:
        yield heading("memory copies and fills")
        yield _copies(timeline.copies)
    if timeline.operators and not timeline.has_gpu:
        yield heading("operators on the CPU")
        yield _operators(timeline.operators)


def no_gpu(timeline: Timeline) -> str:
    """One line about a trace without GPU activity."""
    rest = f"what it still tells is the CPU time of its {len(timeline.operators)} operators" if timeline.operators else "nor any operator"
    return f"[yellow]{escape(timeline.name)} holds no GPU activity (kernel, copy or fill): {rest}[/]"


def notes(timeline: Timeline) -> Iterator[str]:
    trace = timeline.trace
    if unlinked := trace.unlinked:
        names = ", ".join(list(dict.fromkeys(short(a.name) for a in unlinked))[:3])
        yield (f"{len(unlinked)} of {len(trace.activities)} GPU activities have no launch in the trace ({names}): they count as busy, in "
               "no launch and no queue, and the gaps before them never as host wait")  # fmt: skip
    if trace.skipped:
        yield f"{trace.skipped} events without a time that can be read were left out"
    yield from trace.notes


def busy(timeline: Timeline) -> Table:
    """A row per GPU, and one per stream if a GPU has several."""
    table = columns("GPU", "span us", "busy us", "busy", *(f"{cause} us" for cause in idle.CAUSES),
                   "of host wait: before, in, after the call", "activities", "no launch")  # fmt: skip
    for part in timeline.devices:
        _busy_row(table, _gpu(timeline, part.device), part)
        own = [p for p in timeline.streams if p.device == part.device]
        for stream in own if len(own) > 1 else ():
            _busy_row(table, f"  stream {stream.stream}", stream)
    return table


def _busy_row(table: Table, name: str, part: Part) -> None:
    found = part.breakdown
    host = found.host_wait
    total = host.before_call + host.in_call + host.after_call
    split = " / ".join(f"{100 * ns / total:.0f} %" for ns in (host.before_call, host.in_call, host.after_call)) if total else ""
    waits = [f"{us(found.waited(cause))} ({100 * found.waited(cause) / found.span:.1f} %)" if found.span else "" for cause in idle.CAUSES]
    share = f"{100 * found.busy / found.span:.1f} %" if found.span else ""
    table.add_row(escape(name), us(found.span), us(found.busy), share, *waits, split, str(found.activities), str(found.unlinked or ""))


def _gpu(timeline: Timeline, device: str) -> str:
    name = timeline.trace.devices.get(device, "")
    return f"{device} {name}".strip()


def kinds(found: Kinds, overlap: bool = True) -> Table:
    """The kinds that ran at once, and how much of the communication computation hid."""
    table = columns("kinds", "us", "of busy", "of the span")
    for key, ns in found.together.items():
        table.add_row(" beside ".join(key), us(ns), f"{100 * ns / found.busy:.1f} %", f"{100 * ns / found.span:.1f} %")
    if overlap and found.overlap is not None:
        table.add_row("[bold]communication beside computation[/]", "", f"{100 * found.overlap:.2f} % of communication", "")
    return table


def kernel_times(groups: Mapping[str, Sequence[KernelTimes]]) -> Table:
    """A row per kernel; for several ranks, grouped by rank."""
    ranked = len(groups) > 1
    table = columns("kernel", *(["rank"] if ranked else []), "kind", "runs", "us", "mean us", "least us", "greatest us", "deviation us")
    names = dict.fromkeys((row.kind, row.name) for rows in groups.values() for row in rows)
    for of, name in sorted(names, key=lambda pair: (KINDS.index(pair[0]), pair[1] == OTHERS)):
        for group, rows in groups.items():
            for row in (row for row in rows if (row.kind, row.name) == (of, name)):
                figures = [f"{x:.3f}" for x in (row.total, row.mean, row.least, row.greatest, row.deviation)]
                where = [group] if ranked else []
                table.add_row(escape(name.removeprefix("void ")[:NAME]), *where, row.kind, str(row.count), *figures)
    return table


def launches(every: Launches, rows: Sequence[Launches], cutoffs: Cutoffs) -> Table:
    table = columns("kernel", "by", "launches", "CPU us", "GPU us", "delay us",
                   "short kernels", f"call > {cutoffs.call_us:g} us", f"delay > {cutoffs.delay_us:g} us")  # fmt: skip
    for row in (*rows[:MOST_ROWS], every):
        name = escape(row.kernel) if row.kernel else f"all{f', {len(rows) - MOST_ROWS} more kernels' if len(rows) > MOST_ROWS else ''}"
        spreads = [f"{s.median:.3f}  {s.high:.3f}  {s.most:.3f}" for s in (row.cpu, row.gpu, row.delay)]
        table.add_row(name, escape(row.by), str(row.count), *spreads, *map(str, (row.short_kernels, row.runtime_outliers,
                      row.delay_outliers)), end_section=row is not every and row is (*rows[:MOST_ROWS],)[-1])  # fmt: skip
    return table


def _queues(found: Sequence[queues.Queue]) -> Table:
    table = columns("stream", "mean", "longest", "empty", f"full ({queues.FULL})")
    for q in found:
        shares = [f"{100 * share:.1f} %" for share in (q.empty, q.full)]
        table.add_row(f"{escape(q.stream)} of GPU {escape(q.device)}", f"{q.mean:.2f}", str(q.most), *shares)
    return table


def _copies(found: Sequence[Copies]) -> Table:
    table = columns("kind", "GPU", "count", "MB", "us", "GB/s", "us with no kernel beside")
    for row in found[:MOST_ROWS]:
        size = "n/a" if row.bytes is None else f"{row.bytes / 1e6:.3f}"
        rate = "n/a" if row.gb_per_s is None else f"{row.gb_per_s:.1f}"
        table.add_row(escape(row.kind), escape(row.device), str(row.count), size, f"{row.us:.3f}", rate, f"{row.alone_us:.3f}")
    return table


def _operators(found: Sequence[Operator]) -> Table:
    table = columns("operator", "calls", "us", "own us", "own us a call")
    for row in found[:MOST_ROWS]:
        table.add_row(escape(row.name), str(row.count), f"{row.us:.3f}", f"{row.own_us:.3f}", f"{row.own_us / row.count:.3f}")
    return table


def compared(found: Difference) -> Iterator[RenderableType]:
    of = "of one call" if found.per_call else "of the whole traces: nobody counted the calls of at least one"
    yield heading(f"A = {found.a}, B = {found.b}; times and counts {of}")
    table = columns("", "A", "B", "B / A")
    for row in found.rows:
        table.add_row(row.what + (" us" if row.unit == "us" else ""), _value(row, row.a), _value(row, row.b),
                      "" if row.ratio is None else f"{row.ratio:.3f}")  # fmt: skip
    yield table
    yield heading("kernels, copies and fills of the whole traces")
    kernels = columns("name", "A times", "B times", "A us", "B us")
    for k in found.kernels[:MOST_ROWS]:
        counts = [str(n) if n else "none" for n in (k.a_count, k.b_count)]
        times = [f"{t:.3f}" if n else "" for n, t in ((k.a_count, k.a_us), (k.b_count, k.b_us))]
        kernels.add_row(escape(k.name), *counts, *times)
    yield kernels


def _value(row: Row, value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if row.unit == "share" else f"{value:.3f}" if row.unit else f"{value:g}"


def us(ns: int) -> str:
    return f"{ns / 1e3:.3f}"


def heading(text: str) -> str:
    """A separate line, since rich folds a table's title to the table's width."""
    return f"\n[bold]{escape(text)}[/]"


def columns(first: str, *figures: str) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in figures:
        table.add_column(name, justify="left" if name == "by" else "right")
    return table


def beside_hta(timeline: Timeline, hta: Figures) -> Iterator[RenderableType]:
    """Holistic Trace Analysis's figures beside ours, where both have one; us."""
    yield heading("Holistic Trace Analysis of the same trace")
    table = columns("", "opwise", "HTA")
    parts = [part.breakdown for part in timeline.devices]
    if len(parts) == 1:  # HTA takes the GPUs of a trace for one
        for name, ours, theirs in (("span", parts[0].span, hta.span), ("busy", parts[0].busy, hta.busy), ("idle", parts[0].idle, hta.idle)):
            table.add_row(f"{name} us", us(ours), f"{theirs:.3f}")
        if timeline.kinds:
            table.add_row("computation us", us(timeline.kinds.ran(COMPUTATION)), f"{hta.compute:.3f}")
        for part in timeline.streams:
            for cause in idle.CAUSES:
                theirs = hta.streams.get(part.stream, {}).get(cause, 0.0)
                table.add_row(f"stream {escape(part.stream)}: {cause} us", us(part.breakdown.waited(cause)), f"{theirs:.3f}")
    table.add_row("launches with their kernel", str(len(timeline.launches)), str(hta.launches))
    table.add_row("longest queue", str(max((q.most for q in timeline.queues), default=0)), str(max(hta.longest_queue.values(), default=0)))
    yield table
