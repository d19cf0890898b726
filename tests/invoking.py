"""The command in this process, as a terminal that knows no colours has it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from opwise.cli import app


def command(*words: str, behind: tuple[str, ...] = (), **environment: str) -> Callable[..., Result]:
    """invoke(*arguments) of `opwise` and these words; `behind` come last."""
    return lambda *arguments: CliRunner(env={"TERM": "dumb", **environment}).invoke(app, [*words, *arguments, *behind])


invoke = command()


def skip_if_missing(said: str) -> None:
    """`opwise inspect` names the command that tells what a backend lacks, in the line that says what is missing."""
    for line in said.splitlines():
        if "opwise backends" in line:
            pytest.skip(line.strip())
