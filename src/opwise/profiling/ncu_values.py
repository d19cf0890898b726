"""Run as a program by its path, in a separate process: NVIDIA's ncu_report has crashed processes that also load torch and CUDA.

Arguments: the report, the folder of ncu_report, metrics. Prints a JSON list of [kernel, metric, value, unit]."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any


def values(context: Any, metrics: Sequence[str]) -> Iterator[tuple[str, str, float | str, str]]:
    """`context`: the result of ncu_report.load_report. Metrics that a kernel lacks are left out."""
    for launches in (context.range_by_idx(i) for i in range(context.num_ranges())):
        for action in (launches.action_by_idx(i) for i in range(launches.num_actions())):
            for metric in metrics:
                counter = action.metric_by_name(metric)
                if counter is not None and (value := counter.value()) is not None:
                    yield str(action.name()), metric, value, str(counter.unit())


if __name__ == "__main__":
    report, folder, *metrics = sys.argv[1:]
    sys.path.insert(0, folder)
    json.dump(list(values(importlib.import_module("ncu_report").load_report(report), metrics)), sys.stdout)
