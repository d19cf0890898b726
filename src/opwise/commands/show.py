"""`opwise show`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from opwise import library
from opwise.block import plot as block_plot
from opwise.block.records import BlockRecord, read_blocks
from opwise.commands.block import print_blocks
from opwise.commands.console import NEWEST, Json, Out, ending, known, one_form, print_records, print_roofs, read_run, refuse, stderr, where
from opwise.record import Record, UnknownSchema
from opwise.report import ladder_plot, overview, still
from opwise.report.html import MissingExtra
from opwise.report.ladders import LADDERS

EXAMPLES = (
    "Examples:  opwise show  ·  opwise show h200  ·  opwise show results/nvidia-h200/….jsonl --json  ·  opwise show block --plot block.svg"
)


def show(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help=f"A file, or part of its name. Default: {NEWEST}.")] = None,
    out: Out = Path("results"),
    as_json: Json = False,
    markdown: Annotated[
        bool,
        typer.Option(
            "--markdown",
            help="The README's table: SOL per workload and backend, full clock / power-capped where they differ; or a block run's table.",
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"Also a picture of a block run, or of a run's ladders: {', '.join(still.FORMATS)}."),
    ] = None,
    ladder: Annotated[
        str | None, typer.Option(help=f"With --plot, this ladder alone. Known: {', '.join(each.name for each in LADDERS)}.")
    ] = None,
) -> None:
    """Print a stored run of any machine.

    `cold us` is the GPU time of a launch from a cold L2 at full clock. `capped us` is the same for launches back to back, where the power
    cap lowers the clock. `fastest` is fastest or tied in both; else the rank names the state.
    """
    one_form(as_json, markdown)
    ending("--plot", plot, still.FORMATS)
    known("--ladder", [ladder] if ladder else None, [each.name for each in LADDERS])
    if ladder and plot is None:
        refuse("--ladder says what --plot draws: give --plot FILE too")
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
    if plot is not None:
        _draw(plot, records, blocks, ladder)


def _draw(plot: Path, records: list[Record], blocks: Sequence[BlockRecord], ladder: str | None) -> None:
    try:
        if blocks:
            block_plot.write(blocks, plot)
        else:
            ladder_plot.write(records, ladder_plot.whole(records, ladder), plot)
    except (MissingExtra, OSError, ValueError) as error:
        refuse(f"--plot: {error}")
    stderr.print(f"picture in {plot}", highlight=False, soft_wrap=True, markup=False)
