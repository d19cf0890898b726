"""The `opwise` command. Results go to stdout, progress and messages to stderr.

Exit status: 0 all right, 1 something wrong or failed, 2 bad usage, 130 interrupted.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

import opwise
from opwise.commands import (
    anatomy,
    backends,
    bars,
    block,
    check,
    choose,
    compare,
    inspect,
    profile,
    record,
    report,
    run,
    seeds,
    show,
    timeline,
    tune,
    verify,
)
from opwise.commands.console import fail, refuse, stdout


class Commands(TyperGroup):
    """Prints an OSError, and a ring of links, as one line without a traceback; a closed stdout pipe ends the command silently."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # a kernel's own error may hold half a UTF-16 pair; stderr does so anyway
        with _refusals():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _refusals():
            return super().invoke(ctx)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # typer's
    except OSError as error:
        if error.errno is None:
            refuse(str(error))
        if error.filename is None:
            fail(f"the output could not be written: {error.strerror}")
        refuse(f"{error.filename}: {error.strerror}: give a file or folder that can be read or written here")
    except RuntimeError as error:  # pathlib's, before Python 3.13
        if not str(error).startswith("Symlink loop"):
            raise
        refuse(f"{error}: give a file or folder that can be read or written here")


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Which way of writing a GPU kernel is right, how fast is it against the hardware's limit, which one to use.",
)
app.command(epilog=run.RUN_EXAMPLES)(run.run)
app.command(epilog=check.EXAMPLES)(check.check)
app.command(epilog=verify.EXAMPLES)(verify.verify)
app.command()(backends.backends)
app.command(epilog=show.EXAMPLES)(show.show)
app.command(epilog=choose.EXAMPLES)(choose.choose)
app.command(epilog=record.EXAMPLES, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(record.record)
app.command(epilog=report.EXAMPLES)(report.report)
app.command(epilog=compare.EXAMPLES)(compare.compare)
app.command(epilog=bars.EXAMPLES)(bars.bars)
app.command(epilog=block.EXAMPLES)(block.block)
app.command(epilog=inspect.EXAMPLES)(inspect.inspect)
app.command(epilog=profile.EXAMPLES)(profile.profile)
app.command(epilog=anatomy.EXAMPLES)(anatomy.anatomy)
app.command(epilog=timeline.EXAMPLES)(timeline.timeline)
app.command(epilog=seeds.EXAMPLES)(seeds.seeds)
app.command(epilog=tune.EXAMPLES)(tune.tune)


def main() -> None:
    # Workers import the script by which their command was started, but not `python -m`'s module: this one has nothing for them.
    sys.modules["__main__"].__spec__ = importlib.util.find_spec("opwise.__main__")
    gc.freeze()  # what was imported is no garbage, now or at the end, when taking it down piece by piece would take most of a second
    gc.enable()
    atexit.register(gc.freeze)
    try:
        app()
    finally:
        for stream in (sys.stdout, sys.stderr):
            _emptied(stream)


def _emptied(stream: TextIO) -> None:
    """What a full disk or a closed pipe did not take is dropped: Python would try again at its end, and say so."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _version(wanted: bool) -> None:
    if wanted:
        stdout.print(f"opwise {opwise.__version__}", highlight=False)
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]


@app.callback()
def common(version: Version = False) -> None:
    pass


if __name__ == "__main__":
    main()
