"""Starts the process that workers are forked from, before anything else is imported, if this process is a command that needs it.

That process imports torch and opwise, which takes seconds, at the same time as this one. If the workers are in a Dask cluster, they are
told to start theirs instead. Only the standard library may be imported before this module, and importing opwise from another program starts
nothing."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from opwise import surroundings

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

COMMANDS = ("run", "bars", "block")  # of those that start workers, the ones that are waited for
COMPILING = (*COMMANDS, "check", "verify", "profile", "anatomy", "timeline", "inspect", "seeds", "tune")  # or whose workers do
LAST = "opwise.runner.loaded"
# No GPU library: each picks its stand-in, or what it finds in the environment, while it is imported, and workers have their own.
PRELOADED = ("opwise.runner.worker", "opwise.runner.apart", LAST)


def nursery() -> ForkServerContext:
    """A forkserver context that starts workers. Its server has imported torch and opwise, but no GPU library.

    A fork of this process would inherit threads and a CUDA context."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Disables garbage collection around imports: searching the new, permanent objects takes a fifth of the import time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def commanded(argv: list[str], original: list[str]) -> str:
    """The command of this process: the word after `opwise`, or after `python -m opwise`; "" if it is not `opwise`.

    While the package of `python -m` is imported, argv[0] is "-m" and only the interpreter's own arguments hold the module's name."""
    if len(argv) < 2:
        return ""
    named = argv[0] == "-m" and original[-len(argv) :][0] == "opwise"
    return argv[1] if named or Path(argv[0]).name == "opwise" else ""


def scheduler(argv: list[str]) -> str:
    """The value of --scheduler; "" if it is not given."""
    for at, word in enumerate(argv):
        if word == "--scheduler" and at + 1 < len(argv):
            return argv[at + 1]
        if word.startswith("--scheduler="):
            return word.partition("=")[2]
    return ""


def _begin() -> None:
    """Nothing, unless this process is one of COMMANDS, or their nursery."""
    if any(LAST in word for word in sys.orig_argv):  # the nursery's code names what it loads
        gc.disable()  # until LAST
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's; an import that it broke off here would spoil every worker
        return
    command = commanded(sys.argv, sys.orig_argv)
    if command:
        surroundings.open_streams()
    if command in COMPILING and (told := surroundings.writable_caches()):
        sys.stderr.write(f"opwise: {told}\n")
    if command in COMMANDS:
        gc.disable()  # until the command begins (opwise.cli)
        if address := scheduler(sys.argv):
            from opwise.scaling.hail import hail

            hail(address, PRELOADED)
        else:
            from multiprocessing import forkserver

            nursery()
            forkserver.ensure_running()


_begin()
