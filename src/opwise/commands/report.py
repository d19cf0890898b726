"""`opwise report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opwise import library
from opwise.commands.console import NEWEST, Out, ending, refuse, stderr, stdout, warnings_told
from opwise.record import UnknownSchema
from opwise.report import html, pictures
from opwise.report.figures import styles

EXAMPLES = (
    "Examples:  opwise report  ·  opwise report h200 -o h200.html  ·  opwise report results/…/a.jsonl results/…/b.jsonl  ·  "
    "opwise report --plots figures"
)


def report(
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Files, or parts of their names; one, or two side by side. "
                                                     f"Default: {NEWEST}.")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("report.html"),
    plots: Annotated[Path | None, typer.Option(metavar="DIR", help="Also write every figure as SVG and PNG into this folder.")] = None,
    out: Out = Path("results"),
) -> None:  # fmt: skip
    """Write one HTML page that needs no network: winners, roofline, times, costs, errors, verdicts and the machine's facts.

    Where the power cap changes a time, both states are shown: full clock, and power-capped as hollow or dotted marks. A winner is
    fastest or tied in both.
    """
    ending("-o", output, (".html",))
    if len(runs or []) > html.MOST_RUNS:
        refuse(f"{len(runs or [])} runs given: one, or two side by side, are taken")
    try:
        stored = library.stored(out)
        found = [_read(library.find(name, out), stored) for name in (runs or [""])]
        text = html.page(found)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
        size = len(text.encode())
        if size > html.MOST_BYTES:
            stderr.print(f"warning: {size / 1e6:.1f} MB is more than a page should be: report fewer cells", style="yellow", highlight=False)
        stdout.print(f"written: {output} ({size / 1e6:.1f} MB)", highlight=False, soft_wrap=True, markup=False)
        for run, drawn in zip(found, html.drawn(found), strict=True) if plots is not None else ():
            paths = pictures.write(drawn, styles(run.backends), plots or Path(), run.name)
            stdout.print(f"written: {len(paths)} plots of {run.name} in {plots}", highlight=False, soft_wrap=True, markup=False)
    except (library.NoSuchRun, UnknownSchema, html.MissingExtra, OSError) as error:
        refuse(str(error))


def _read(path: Path, stored: list[Path]) -> html.Run:
    with warnings_told():
        run = html.Run.read(path, stored)
    if not run.records:
        blocks = "a run of blocks is on the page of any other run of its device"
        hint = blocks if library.is_block(path) else "there is nothing to report"
        refuse(f"{path} holds no finished record: {hint}")
    return run
