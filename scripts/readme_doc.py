"""Writes what the README quotes of opwise: `python scripts/readme_doc.py RUN`, a stored run of the set core, or part of its name.

Its table, one workload's rows, its counts and roofs, and the choice of a backend for that workload. tests/test_readme.py holds the README
to them.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text
from typer.testing import CliRunner

from opwise.cli import app
from opwise.commands.console import where
from opwise.library import find
from opwise.record import read
from opwise.report import overview, tables

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "README.md", ROOT / "results"
QUOTED = "softmax/4096x4096/float16"
CHOICE = ("choose", "softmax", "--shape", "4096x4096", "--dtype", "float16", "--device", "nvidia-h100")
COLUMNS = 9  # of a table's row: up to the call


def printed(*arguments: str, width: int = 200) -> list[str]:
    found = CliRunner(env={"TERM": "dumb", "COLUMNS": str(width)}).invoke(app, list(arguments), catch_exceptions=False)
    return [line.rstrip() for line in found.stdout.rstrip().splitlines()]


def block(lines: Sequence[str]) -> str:
    return "".join(f"    {line}".rstrip() + "\n" for line in lines)


def quotes(path: Path) -> dict[str, str]:
    """A pattern of the page -> what is to stand there."""
    records = read(path)
    shown = printed("show", str(path))
    at = next(i for i, line in enumerate(shown) if line.startswith(QUOTED))
    rows = ["│".join(line.split("│")[:COLUMNS]).rstrip() for line in shown[at : at + 6]]
    counts = [Text.from_markup(line).plain for line in tables.summary(records)]
    roofs = textwrap.wrap(shown[-1], 140, break_long_words=False, break_on_hyphens=False)
    stem = path.name.partition(".")[0]
    label = stem.partition("-")[2]
    return {
        r"(?s)<!-- opwise show \S+ --markdown -->\n.*?<!-- end -->":
            f"<!-- opwise show {label} --markdown -->\n{where(records)}\n\n{overview.markdown(records)}\n<!-- end -->",
        rf"    {QUOTED}    │.*\n(?:      .*softmax .*\n)+": block(rows),
        r"    \d+ ok.*\n(?:      .*\n)+(?:    SOL (?:.*\n)+?)?    stored in results/\S+\n":
            block([*counts, *roofs, f"stored in results/{path.parent.name}/{stem}.jsonl"]),
        rf"(?s)    {QUOTED} for stream.*?\n\n": block(printed(*CHOICE)) + "\n",
    }  # fmt: skip


def main(run: str) -> None:
    text = PAGE.read_text()
    for pattern, quote in quotes(find(run, RESULTS)).items():
        text, n = re.subn(pattern, lambda _, quote=quote: quote, text)  # type: ignore[misc]
        if n != 1:
            raise SystemExit(f"{PAGE.name} has {n} places of {pattern!r}, and one is written")
    PAGE.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
