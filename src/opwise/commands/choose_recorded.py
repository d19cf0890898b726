"""`opwise choose --recorded`: the calls of a recorded program, each with its backend, and what switching saves."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table

from opwise import library
from opwise.choosing.ranking import BASELINE
from opwise.choosing.store import Store
from opwise.choosing.table import VARIABLE, write_table
from opwise.commands.console import read_recording, refuse, stdout, warnings_told
from opwise.program.advice import Advice, Line, advice
from opwise.program.calls import Recording

SHOWN = 40


def answer(path: Path, device: str | None, purpose: str, clock: str, out: Path, write: Path | None, as_json: bool) -> None:
    """Raises NothingMeasured where no GPU is on record, ValueError for an unknown device."""
    recording = read_recording(path)
    with warnings_told():
        store = Store.load(library.stored(out), purpose=purpose)
    found = advice(recording, store, device, purpose, clock)
    if write is not None:
        try:
            write_table(write, found.gpu.device, found.choices)
        except OSError as error:
            refuse(f"--write {error}")
    if as_json:
        lines = [{"what": line.what, "calls": line.calls, "why": line.why, "backend": line.choice.backend if line.choice else BASELINE,
                  "us": line.choice.chosen.us if line.choice else None, "eager_us": line.eager_us, "saved_s": line.saved_s}
                 for line in found.lines]  # fmt: skip
        typer.echo(json.dumps({"device": found.gpu.device, "seconds": found.seconds, "saved_s": found.saved_s, "calls": lines}))
        return
    show(found, recording)
    if write is not None:
        stdout.print(f"stored in {write}: {VARIABLE}={write} has opwise dispatch by it", highlight=False, soft_wrap=True, markup=False)


def show(found: Advice, recording: Recording) -> None:
    stdout.print(f"{' '.join(recording.command)}, recorded on {recording.device}; figures of {found.gpu}", style="bold", highlight=False,
                 markup=False)  # fmt: skip
    table = Table(show_edge=False, pad_edge=False)
    for name in ("call", "calls", "use", "us", "torch eager us", "saves ms", "figures, or why not"):
        table.add_column(name, justify="left" if name in ("call", "use", "figures, or why not") else "right")
    for line in found.lines[:SHOWN]:
        table.add_row(*map(escape, (line.what, str(line.calls), *_cells(line))))
    stdout.print(table)
    if len(found.lines) > SHOWN:
        stdout.print(f"and {len(found.lines) - SHOWN} other kinds of calls", highlight=False)
    won = sum(line.calls for line in found.lines if line.saved_s > 0)
    if not won:
        stdout.print("switching saves nothing: torch eager is within 1 % of the best at every call, or keeps it", highlight=False)
        return
    every, saved = sum(line.calls for line in found.lines), f"{found.saved_s * 1e3:.3g} ms"
    if recording.device == "cpu":
        of = ", of a program that was recorded without a GPU: recorded on one, it tells the share"
    elif not found.seconds:
        of = ""
    else:
        of = f" of {found.seconds:.3g} s, {found.saved_s / found.seconds:.1%}"
    stdout.print(f"opwise's functions in place of torch's save {saved} in {won} of {every} calls{of}", highlight=False, soft_wrap=True)


def _cells(line: Line) -> tuple[str, str, str, str, str]:
    if line.choice is None:
        return BASELINE, "", "", "", line.why
    chosen, eager = line.choice.chosen, line.eager_us
    figures = ", ".join([chosen.basis, *(["stale"] if chosen.stale else [])])
    saved = f"{line.saved_s * 1e3:.3g}" if line.saved_s else ""
    return line.choice.backend, f"{chosen.us:.4g}", "n/a" if eager is None else f"{eager:.4g}", saved, figures
