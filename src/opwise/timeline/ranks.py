"""The traces of a job's ranks, read together: each rank's time by kind, and the sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from opwise.timeline import tables
from opwise.timeline import trace as traces
from opwise.timeline.analysis import Timeline, as_data, kinds_data
from opwise.timeline.container import NotATrace
from opwise.timeline.kinds import COMPUTATION, added

ENDINGS = (".json", ".json.gz")


def files(given: Sequence[Path]) -> list[Path]:
    """The given files, and the traces in given folders. Raises NotATrace for a folder without any."""
    found: list[Path] = []
    for path in given:
        held = sorted(p for p in path.iterdir() if p.name.endswith(ENDINGS)) if path.is_dir() else [path]
        if not held:
            raise NotATrace(f"{path} is a folder without a trace: files are looked for that end in {', '.join(ENDINGS)}")
        found += held
    return found


def read(given: Sequence[Path], **options: Any) -> dict[int, Timeline]:
    """Rank -> its timeline, in the order of ranks: the number in the trace, else the file's position. options: of Timeline.of.

    Raises NotATrace if two files are of one rank or one holds no GPU activity, and what trace.read raises."""
    found: dict[int, Timeline] = {}
    for i, path in enumerate(files(given)):
        trace = traces.read(path)
        rank = trace.rank if trace.rank is not None else i
        if not trace.activities:
            raise NotATrace(f"{path} holds no GPU activity: leave it out, or record with ProfilerActivity.CUDA")
        if rank in found:
            raise NotATrace(f"{path} is of rank {rank}, and so is {found[rank].trace.name}: one trace a rank is taken")
        found[rank] = Timeline.of(trace, f"rank {rank}", **options)
    return dict(sorted(found.items()))


def shown(job: Mapping[int, Timeline]) -> list[RenderableType]:
    kinds = [t.kinds for t in job.values() if t.kinds]
    return [
        tables.heading("the span of each rank"), spans(job),
        tables.heading("kinds: what ran at once, over all ranks"), tables.kinds(added(kinds), overlap=False),
        tables.heading("kernels, copies and fills by kind and rank"),
        tables.kernel_times({str(rank): t.kernel_times for rank, t in job.items()}),
    ]  # fmt: skip


def spans(job: Mapping[int, Timeline]) -> Table:
    """Idle, computing and otherwise busy time; outlying launches; the share of communication that computation hid."""
    table = tables.columns("rank", "trace", "span us", "idle us", "compute us", "other us", "communication beside computation", "launches",
                         "short kernels", "long calls", "long delays")  # fmt: skip
    for rank, t in job.items():
        k, every = t.kinds, t.all_launches
        if k:
            compute = k.ran(COMPUTATION)
            parts = [f"{tables.us(ns)} ({100 * ns / k.span:.2f} %)" if k.span else "" for ns in (k.idle, compute, k.busy - compute)]
            counts = [str(n) for n in (every.count, every.short_kernels, every.runtime_outliers, every.delay_outliers)] if every else []
            overlap = "" if k.overlap is None else f"{100 * k.overlap:.2f} %"
            table.add_row(str(rank), escape(t.trace.name), tables.us(k.span), *parts, overlap, *counts)
    return table


def job_data(job: Mapping[int, Timeline]) -> list[Mapping[str, Any]]:
    """One object per rank, then one for all."""
    whole = added(t.kinds for t in job.values() if t.kinds)
    return [*({**as_data(t), "rank": rank} for rank, t in job.items()), {"kind": "job", "ranks": list(job), "kinds": kinds_data(whole)}]
