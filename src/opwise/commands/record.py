"""`opwise record`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from opwise.commands.console import ending, refuse, stderr, stdout
from opwise.program.calls import Recording

EXAMPLES = (
    "Examples:  opwise record -- python app.py --epochs 1  ·  opwise record -o train.json -- python -m torch.distributed.run app.py  ·  "
    "opwise choose --recorded recording.json --device h100  ·  opwise run --recorded recording.json --brief"
)
WITHOUT_VALUE, WITH_VALUE = re.compile(r"-[uOBIEsSqvdPbR]+$"), ("-X", "-W")
SHOWN = 30


def record(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND…", help="python app.py …, python -m module … or python -c code.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The recording.")] = Path("recording.json"),
) -> None:
    """Run an unchanged Python program that uses torch, and count its calls of the five ops, and of calls that contain one, by shape, dtype,
    strides, alignment, gradient and device.

    `opwise choose --recorded` chooses a backend for each and predicts the saving; `opwise run --recorded` measures exactly those.
    torch.compile'd functions run uncompiled. Processes that the program starts are not recorded. Exit status: the program's.
    """
    interpreter, rest = parsed(command)
    ending("--output", output, (".json",))
    if not output.parent.is_dir():
        refuse(f"--output {output}: {output.parent} is no folder: make it, or name another file")
    output.unlink(missing_ok=True)
    done = subprocess.Popen([*interpreter, "-m", "opwise.program", str(output.resolve()), "--", *rest])
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program has it too, and writes what was seen
    try:
        status = done.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    status = 128 - status if status < 0 else status  # as a shell says that a signal ended it
    if not output.is_file():
        stderr.print(f"opwise: nothing was recorded: the program ended with status {status} before its first line", style="bold red")
        raise typer.Exit(status or 1)
    show(Recording.read(output))
    stdout.print(f"stored in {output}", highlight=False, soft_wrap=True, markup=False)
    raise typer.Exit(status)


def parsed(command: list[str]) -> tuple[list[str], list[str]]:
    """(the interpreter with its options, what it runs). Ends the command where that is no Python program."""
    first, *rest = command
    if first.endswith(".py"):
        return [sys.executable], command
    if not re.fullmatch(r"python[\d.]*", Path(first).name):
        refuse(f"{' '.join(command)!r} is no Python program: given is {first}, taken are python FILE, python -m MODULE, python -c CODE and "
               "FILE.py; in any other program `with opwise.recording() as seen:` counts")  # fmt: skip
    options = []
    while rest and (WITHOUT_VALUE.match(rest[0]) or rest[0] in WITH_VALUE):
        options += [rest.pop(0) for _ in range(2 if rest[0] in WITH_VALUE else 1) if rest]
    if not rest or (rest[0] in ("-m", "-c") and len(rest) < 2) or (rest[0].startswith("-") and rest[0] not in ("-m", "-c")):
        refuse(f"{' '.join(command)!r} names no program: give python FILE, python -m MODULE or python -c CODE after --")
    bare = re.fullmatch(r"python3?", first)  # opwise's own: another one need not have it
    return [sys.executable if bare else first, *options], rest


def show(recording: Recording) -> None:
    """Prints the most frequent calls."""
    counted = sum(call.calls for call in recording.calls)
    title = f"{counted} of torch's {recording.dispatched} calls are of the five ops or contain one, in {recording.seconds:.1f} s"
    stdout.print(f"{title} on {recording.device}", style="bold", highlight=False, markup=False)
    table = Table(show_edge=False, pad_edge=False)
    for name in ("call", "calls", "layout", "16 bytes", "gradient", "opwise"):
        table.add_column(name, justify="right" if name == "calls" else "left")
    for call in recording.calls[:SHOWN]:
        compiled = "compiled, " if call.compiled else ""
        table.add_row(call.name, str(call.calls), "" if call.near else call.layout, "" if call.aligned else "off", call.gradient,
                      compiled + (f"eager: {call.left_to_eager}" if call.left_to_eager else "chooses"))  # fmt: skip
    stdout.print(table)
    if len(recording.calls) > SHOWN:
        rest = recording.calls[SHOWN:]
        stdout.print(f"and {len(rest)} other kinds of calls, {sum(c.calls for c in rest)} calls", highlight=False)
