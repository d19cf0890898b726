"""Runs a Python program as `python` would, and records it: python -m opwise.program FILE -- app.py …, -m module … or -c code …

The recording is written when the program ends in any way: its last line, sys.exit, an error or Ctrl-C. The exit status is the program's."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

from opwise.program.counting import recording


def run(rest: list[str]) -> None:
    kind, *arguments = rest
    if kind in ("-m", "-c"):
        what, *arguments = arguments
        sys.path[0] = "" if kind == "-c" else str(Path.cwd())
        sys.argv = [kind, *arguments]
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    else:
        sys.path[0], sys.argv = str(Path(kind).resolve().parent), rest
        runpy.run_path(kind, run_name="__main__")


def main() -> None:
    path, _, *rest = sys.argv[1:]
    with recording(tuple(rest)) as seen:
        try:
            run(rest)
        finally:
            seen.end()
            fresh = Path(f"{path}.part{os.getpid()}")
            seen.recording.write(fresh)
            fresh.replace(path)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # which Python itself turns into the signal for a file, and not for a module
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
