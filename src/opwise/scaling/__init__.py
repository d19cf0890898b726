"""More than one GPU: `crew` carries out jobs on those of one machine, `cluster` on those of many, through Dask.

Both are executors (runner.supervisor.Executor), like the runner for one GPU. A workload's implementations stay together on one GPU, because
only interleaved times are compared."""

from __future__ import annotations


class Stranded(RuntimeError):
    """No executor is left for the remaining jobs. Finished ones are stored; the message says what became of the others."""
