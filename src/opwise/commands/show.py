"""`opwise show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opwise import library
from opwise.block.records import read_blocks
from opwise.commands.block import print_blocks
from opwise.commands.console import Json, Out, print_records, print_roofs, read_run, refuse, where
from opwise.record import UnknownSchema
from opwise.report import overview

EXAMPLES = "Examples:  opwise show  ·  opwise show h200  ·  opwise show results/nvidia-h200/….jsonl --json  ·  opwise show block"


def show(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A file, or part of its name. Default: the newest.")] = None,
    out: Out = Path("results"),
    as_json: Json = False,
    markdown: Annotated[
        bool,
        typer.Option(
            "--markdown",
            help="The README's table: SOL per workload and backend, full clock / power-capped where they differ; or a block run's table.",
        ),
    ] = False,
) -> None:
    """Print a stored run of any machine.

    `cold us` is the GPU time of a launch from a cold L2 at full clock. `capped us` is the same for launches back to back, where the power
    cap lowers the clock. `fastest` is fastest or tied in both; else the rank names the state.
    """
    try:
        path = library.find(run, out)
        records = read_run(path)
        blocks = read_blocks(path) if not records else []
    except (library.NoSuchRun, UnknownSchema, OSError) as error:
        refuse(str(error))
    if blocks and as_json:
        for block in blocks:
            typer.echo(block.to_json())
    elif blocks:
        print_blocks(blocks, markdown)
    elif markdown:
        typer.echo(f"{where(records)}\n\n{overview.markdown(records)}")
    else:
        print_records(records, as_json, title=f"{path}: {where(records)}")
        if not as_json:
            print_roofs(path, records)
