"""`opwise backends`."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from opwise.commands.console import Device, chosen_device, stdout, surveyed


def backends(
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable: an array, an object a backend.")] = False,
) -> None:
    """List the backends available here with versions, or why one is missing and what to do."""
    catalogue = surveyed(chosen_device(device)).catalogue
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(entry) for entry in catalogue.values()]))
        return
    table = Table(show_edge=False, pad_edge=False)
    for name in ("backend", "here", "versions", "why not, and what to do"):
        table.add_column(name, overflow="fold")
    for name, entry in catalogue.items():
        here = "no" if not entry.available else f"stand-in: {entry.stand_in}" if entry.stand_in else "yes"
        versions = ", ".join(f"{library_} {version}" for library_, version in entry.versions.items())
        table.add_row(name, here, versions, escape(f"{entry.reason}: {entry.remedy}" if entry.reason else ""))
    stdout.print(table)
