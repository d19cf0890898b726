"""More than one GPU: `crew` carries out jobs on those of one machine, `cluster` on those of many, through Dask.

Both are executors (runner.supervisor.Executor), as the runner for one GPU is. A workload's implementations stay together on one GPU,
because times are compared only where they were taken interleaved.
"""

from __future__ import annotations


class Stranded(RuntimeError):
    """Nobody is left to carry out the jobs that remain. What is finished is stored; the message says what became of the others."""
