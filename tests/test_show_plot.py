"""`opwise show RUN --plot FILE`: a block run as bars, a run's ladders as marks; and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from invoking import invoke
from recorded_runs import cell, stored

from opwise import library
from opwise.block import plot
from opwise.block.records import BlockRecord, read_blocks
from opwise.record import Record, read
from opwise.report import ladder_plot
from opwise.report.ladders import LADDERS

ROOT = Path(__file__).resolve().parents[1]
BLOCK = library.find("block-3e77cc1", ROOT / "results")
LADDER = next((ROOT / "results" / "ladders").glob("*/*.jsonl"))


@pytest.fixture(autouse=True)
def matplotlib_is_there() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'opwise[report]'")


@pytest.mark.parametrize(("picture", "run", "more"), [
    ("block.svg", BLOCK, ()), ("ladder.svg", LADDER, ("--ladder", "torch_inline/matmul")),
])  # fmt: skip
def test_the_pictures_of_the_pages_are_those_that_the_command_makes(picture: str, run: Path, more: tuple[str, ...], tmp_path: Path) -> None:
    """As drawings: another matplotlib may place a letter elsewhere."""
    made = tmp_path / "new" / picture
    result = invoke("show", str(run), "--plot", str(made), *more)
    assert result.exit_code == 0, result.output
    kept = ROOT / "docs" / picture
    assert ElementTree.parse(made).getroot().tag == ElementTree.parse(kept).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert _said(made) == _said(kept) != []
    assert kept.stat().st_size < 200_000


def _said(path: Path) -> list[str]:
    """matplotlib writes each text beside its outlines, as a comment."""
    return [line.strip() for line in path.read_text().splitlines() if line.strip().startswith("<!-- ")]


def test_a_block_says_where_it_ran_in_which_state_and_of_which_commit() -> None:
    records = read_blocks(BLOCK)
    assert plot.title(records) == [
        "block of 8b, 4096 tokens, swapped: matmul, softmax, gelu",
        "NVIDIA H100 80GB HBM3, commit 3e77cc1, 2026-11-28",
    ]
    assert plot.back_to_back(records) == "back to back, power-capped"
    cool = [records[0], *(replace(r, throttle=()) for r in records[1:])]
    assert plot.back_to_back(cool) == "back to back, not power-capped throughout"


def test_a_block_timed_in_both_states_has_a_panel_each_with_its_own_order(tmp_path: Path) -> None:
    timed = [
        replace(r, full_us=r.block_us and replace(r.block_us, median=3500.0 - i), full_steps_us=r.steps_us)
        for i, r in enumerate(read_blocks(BLOCK))
    ]
    plot.write(timed, tmp_path / "both.svg")
    said = _said(tmp_path / "both.svg")
    assert [bar.us for bar in plot.bars_of(timed, full=True)] == sorted(3500.0 - i for i in range(len(timed)))
    assert f"<!-- {plot.FULL} -->" in said
    assert "<!-- back to back, power-capped -->" in said
    assert "<!-- 3500 us -->" in said


def test_a_block_that_nobody_timed_is_no_picture(tmp_path: Path) -> None:
    untimed: list[BlockRecord] = [replace(r, block_us=None, full_us=None) for r in read_blocks(BLOCK)]
    with pytest.raises(ValueError, match="times need a GPU"):
        plot.write(untimed, tmp_path / "x.svg")


def test_the_ladders_of_a_run_are_those_with_every_rung(tmp_path: Path) -> None:
    records = read(LADDER)
    assert ladder_plot.whole(records) == list(LADDERS)
    first = LADDERS[0]
    torn: list[Record] = [r for r in records if r.implementation != first.rung(first.rungs[0])]
    assert first not in ladder_plot.whole(torn)
    ladder_plot.write(records, LADDERS, tmp_path / "all.png")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    run = str(stored(tmp_path, cell("triton_jit", 10.0)))
    for arguments, needle in [
        (("--plot", str(tmp_path / "x.pdf")), "ends in .svg, .png"),
        (("--plot", str(tmp_path / "x.svg")), "the run has no whole ladder: of torch_inline/softmax"),
        (("--json", "--markdown"), "exclude each other"),
        (("--ladder", "softmax"), "--ladder 'softmax' is unknown"),
        (("--ladder", "triton_jit/softmax"), "give --plot FILE too"),
    ]:
        result = invoke("show", run, *arguments)
        assert result.exit_code == 2, result.output
        assert needle in " ".join(result.output.split()), result.output
