"""The same figures by Holistic Trace Analysis itself: `traceinsight` on PyPI, imported as `hta`, of the extra `timeline`.

Three properties of HTA 0.6.1 matter here. It rounds the start of every event up and its end down to whole us, which takes up to 2 us from
each kernel, unless HTA_DISABLE_NS_ROUNDING is 1 when it is first imported: this module sets it. It stores correlation ids in the smallest
integer type that holds them and then writes row numbers there, which pandas 3 refuses if they are larger: it gets a copy in which all ids
are large. Its temporal breakdown counts everything with a stream as a kernel: synchronisation (`cuda_sync`) too, and the operators by which
torch announces Inductor's Triton kernels (`cpu_op`, with `stream` among their arguments).
"""

from __future__ import annotations

import importlib
import logging
import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwise.timeline import container

REMEDY = "--hta needs traceinsight (Holistic Trace Analysis), which is not installed: pip install 'opwise[timeline]'"


LARGE = 1 << 40  # more than any trace has rows


class HtaMissing(RuntimeError):
    """traceinsight is not installed, or rejects the trace; the message is the remedy or HTA's reason."""


@dataclass(frozen=True)
class Figures:
    """HTA's, in us. `streams`: stream -> cause ("host wait", "kernel wait", "other") -> idle us."""

    span: float
    idle: float
    compute: float
    streams: dict[str, dict[str, float]]
    launches: int
    longest_queue: dict[str, int]

    @property
    def busy(self) -> float:
        return self.span - self.idle


def figures(path: Path, kernel_wait_us: float) -> Figures:
    """Figures of the trace at `path`, whatever its name. Raises HtaMissing if HTA is missing or rejects the trace."""
    os.environ.setdefault("HTA_DISABLE_NS_ROUNDING", "1")
    levels = logging.root.manager.disable
    with tempfile.TemporaryDirectory(prefix="opwise-hta-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)  # it tells how long each step took, as warnings
        try:
            copy = Path(folder) / "trace.json"
            copy.write_text(container.written(_with_large_ids(container.document(path)[0])), encoding="utf-8")
            return _figures(_hta(), copy, kernel_wait_us)
        except HtaMissing:
            raise
        except Exception as error:  # whatever a trace that it was not made for does to it
            reason = (str(error).splitlines() or [""])[0][:200]
            raise HtaMissing(f"Holistic Trace Analysis cannot take {path}: {type(error).__name__}: {reason}") from error
        finally:
            logging.disable(levels)


def _with_large_ids(found: Any) -> dict[str, Any]:
    """The trace as an object, which HTA asks for, with the same links between its events."""
    events = found["traceEvents"] if isinstance(found, dict) else found
    for event in events:
        arguments = event.get("args") if isinstance(event, dict) else None
        if isinstance(arguments, dict) and isinstance(key := arguments.get("correlation"), int) and key > 0:
            arguments["correlation"] = key + LARGE
    return {**(found if isinstance(found, dict) else {}), "traceEvents": events}


def _hta() -> Any:
    try:
        return importlib.import_module("hta.trace_analysis")
    except ImportError as error:
        raise HtaMissing(REMEDY) from error


def _figures(hta: Any, path: Path, kernel_wait_us: float) -> Figures:
    analysis = hta.TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent), include_last_profiler_step=True)
    whole = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    idle, _ = analysis.get_idle_time_breakdown(visualize=False, consecutive_kernel_delay=kernel_wait_us)
    streams: dict[str, dict[str, float]] = {}
    for row in idle.itertuples():
        streams.setdefault(str(row.stream), {})[str(row.idle_category).replace("_", " ")] = float(row.idle_time)
    launches = analysis.get_cuda_kernel_launch_stats(visualize=False)[0]
    queues = analysis.get_queue_length_time_series()
    longest = queues[0].groupby("stream")["queue_length"].max() if 0 in queues else {}
    return Figures(
        float(whole["kernel_time(us)"]),
        float(whole["idle_time(us)"]),
        float(whole["compute_time(us)"]),
        streams,
        len(launches),
        {str(stream): int(n) for stream, n in longest.items()},
    )
