"""The README's figures are what opwise prints of a committed run, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.text import Text
from typer.testing import CliRunner

from opwise.backends import BACKENDS
from opwise.cli import app
from opwise.library import find
from opwise.ops import OPS
from opwise.record import read, read_extra
from opwise.report import overview, tables
from opwise.report.roofs import whose

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
TABLE = re.compile(r"<!-- opwise show (\S+) --markdown -->\n(.*?)\n<!-- end -->", re.DOTALL)


def test_the_table_is_what_the_command_prints() -> None:
    found = TABLE.search(README.read_text())
    assert found, "the README's table stands between the command that makes it and <!-- end -->"
    run, text = found.groups()
    assert overview.markdown(read(find(run, ROOT / "results"))) in text


def test_the_quoted_counts_are_what_the_command_prints() -> None:
    text = README.read_text()
    quoted = re.search(r"^(    \d+ ok.*\n(?:      .*\n)+)(    SOL (?:.*\n)+?)    stored in results/(\S+)\n", text, re.MULTILINE)
    assert quoted
    run = find(quoted[3], ROOT / "results")
    printed = [Text.from_markup(line).plain for line in tables.summary(read(run))]
    assert [line.removeprefix("    ") for line in quoted[1].splitlines()] == printed
    (limits,) = (line["limits"] for line in read_extra(run, "limits"))
    assert " ".join(quoted[2].split()) == whose(limits, read(run)[0].device)


def test_the_quoted_choice_is_what_the_command_prints() -> None:
    """But for what is stale, which changes with the sources and says so."""
    text = README.read_text()
    begin = text.index("    softmax/4096x4096/float16 for stream, on NVIDIA H100 80GB HBM3")
    quoted = text[begin : text.index("\n\n", begin)].splitlines()
    printed = CliRunner(env={"TERM": "dumb"}).invoke(
        app, ["choose", "softmax", "--shape", "4096x4096", "--dtype", "float16", "--device", "nvidia-h100"]
    )
    assert printed.exit_code == 0
    rows, sentence = [line for line in quoted if "│" in line], next(line for line in quoted if ": its kernel" in line)
    assert len(rows) == len(BACKENDS)
    plain = {" ".join(line.replace(", stale", "").split()) for line in printed.output.splitlines()}
    assert {" ".join(line.replace(", stale", "").split()) for line in (*rows, sentence)} <= plain


@pytest.mark.parametrize("label", ["core", "seed"])
def test_the_committed_runs_hold_all_pairs_and_all_are_right(label: str) -> None:
    records = read(find(None, ROOT / "results", "nvidia-h200", label))
    wanted = {(f"{backend}/{op}", str(w)) for backend in BACKENDS for op, spec in OPS.items() for w in spec.workloads[label]}
    assert wanted <= {(r.implementation, str(r.workload)) for r in records if r.status == "ok" and r.timed}


def test_every_command_named_in_the_readme_exists() -> None:
    known = {command.callback.__name__ for command in app.registered_commands if command.callback}
    named = set(re.findall(r"^(?:    )?(?:\.venv/bin/)?opwise (\w+)|`opwise (?!COMMAND)(\w+)", README.read_text(), re.MULTILINE))
    assert {first or second for first, second in named} <= known
    assert len(named) >= 5


def test_one_reader_needs_ten_minutes_for_it() -> None:
    assert len(README.read_text().splitlines()) <= 180
