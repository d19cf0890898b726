"""The command in this process, as a terminal that knows no colours has it."""

from __future__ import annotations

from collections.abc import Callable

from typer.testing import CliRunner, Result

from opwise.cli import app


def command(*words: str, behind: tuple[str, ...] = (), **environment: str) -> Callable[..., Result]:
    """invoke(*arguments) of `opwise` and these words; `behind` come last."""
    return lambda *arguments: CliRunner(env={"TERM": "dumb", **environment}).invoke(app, [*words, *arguments, *behind])


invoke = command()
