"""Block runs on record: lines that come back as they were, tables, and what the other commands make of such a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from invoking import invoke
from recorded_runs import cell, stored

from opwise import library
from opwise.block import table
from opwise.block.records import BlockRecord, newest_beside, read_blocks, store
from opwise.record import SCHEMA, Interval, UnknownSchema, read
from opwise.run_files import append

TOY = "NVIDIA Toy"
STEPS = {"norm 1": 40.0, "qkv": 500.0, "scores": 100.0, "softmax": 150.0, "up": 900.0, "gelu": 100.0, "residual 2": 10.0}
EAGER = BlockRecord(
    backend="torch_eager", ops=("matmul", "softmax", "gelu"), model="8b", tokens=4096, hidden=4096, ff=14336, heads=32, status="ok",
    error_ratio=0.9, block_us=Interval(2000.0, 1990.0, 2004.0, 12, "graph", rounds=(2000.0,) * 12), versus_baseline=(1.0, 1.0, 1.0),
    power_w=690.0, joules=1.38, sm_clock_mhz=1590.0, temperature_c=61.0, throttle=("power cap",), steps_us=STEPS, sources={"gelu": "ab"},
    full_us=Interval(1700.0, 1699.0, 1702.0, 60, "events", rounds=(1700.0,) * 6), full_versus_baseline=(1.0, 1.0, 1.0),
    full_sm_clock_mhz=1980.0, full_steps_us=dict.fromkeys(("qkv", "gelu"), 850.0), seed=7, device=TOY, driver="1.0", capability="9.0",
    versions={"torch": "2.0"}, commit="abc1234", dirty=False,
    time="2026-01-03T00:00:00+00:00",
)  # fmt: skip
QUICK = replace(
    EAGER, backend="triton_jit", block_us=Interval(1900.0, 1895.0, 1905.0, 12, "graph"), versus_baseline=(0.95, 0.94, 0.96),
    full_us=Interval(1785.0, 1780.0, 1790.0, 60, "events"), full_versus_baseline=(1.05, 1.04, 1.06),
)  # fmt: skip
WRONG = replace(
    EAGER, backend="mine", ops=("gelu",), status="wrong", reason="gelu (mine/gelu): [red]3[/red] of 9", error_ratio=float("inf"),
    block_us=None, versus_baseline=None, power_w=None, joules=None, sm_clock_mhz=None, throttle=(), steps_us={}, full_us=None,
    full_versus_baseline=None, full_sm_clock_mhz=None, full_steps_us={},
)  # fmt: skip
RUN = [EAGER, QUICK, WRONG]


def blocks_at(folder: Path, stamp: str, records: list[BlockRecord]) -> Path:
    path = folder / "nvidia-toy" / f"{stamp}-block-abc1234.jsonl"
    append(path, [r.to_json() for r in records])
    return path


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    path = store(RUN, tmp_path)
    assert path.parent.name == "nvidia-toy"
    assert library.is_block(path)
    assert read_blocks(path) == RUN
    line = json.loads(path.read_text().splitlines()[0])
    assert (line["kind"], line["schema"], line["shares"]["matmul"]) == ("block", SCHEMA, pytest.approx(1400 / 1800))
    assert "rounds" not in line["block_us"]
    assert "rounds" not in line["full_us"]
    with pytest.raises(UnknownSchema, match="99"):
        BlockRecord.from_data({"schema": 99, "kind": "block"})


def test_shares_add_up_to_one() -> None:
    assert sum(EAGER.shares.values()) == pytest.approx(1.0)
    assert EAGER.shares == pytest.approx({"matmul": 1400 / 1800, "softmax": 150 / 1800, "gelu": 100 / 1800, "other": 150 / 1800})
    assert WRONG.shares == {}


def test_the_table_has_the_quickest_first_and_what_was_not_measured_empty() -> None:
    names = table.columns(RUN)
    shown = {r.backend: dict(zip(names, texts, strict=True)) for r, texts in table.rows(RUN)}
    assert list(shown) == ["triton_jit", "torch_eager", "mine"]
    assert shown["triton_jit"]["over torch"] == "0.950"
    assert shown["triton_jit"]["interval"] == "0.940 to 0.960"
    assert shown["torch_eager"]["us a block"].startswith("2000 ±0.5%")
    assert (shown["torch_eager"]["W"], shown["torch_eager"]["J a block"], shown["torch_eager"]["matmul"]) == ("690", "1.380", "77.8%")
    assert [shown["mine"][name] for name in ("verdict", "us a block", "W", "J a block", "matmul")] == ["wrong", "", "", "", ""]
    markdown = table.markdown(RUN).splitlines()
    assert markdown[2].startswith("| **triton_jit** | matmul, softmax, gelu | ok | 0.9 | 1900")
    at = markdown.index(table.FULL_TITLE)
    assert len({line.count("|") for line in markdown[: at - 1]}) == 1
    assert markdown[at + 4].startswith("| torch_eager | 1700 ±0.1% | 1.000 |  | 1980 | 50.0% |"), "the other order than back to back"
    assert markdown[at + 5].startswith("| triton_jit | 1785")
    tied = replace(QUICK, versus_baseline=(0.995, 0.99, 1.0))
    assert not table.ahead(tied)
    assert "SM MHz" not in table.columns([WRONG])
    assert table.columns([WRONG], full=True) == []


def test_show_prints_a_block_run_and_takes_an_ordinary_one_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "shipped", lambda: tmp_path / "none")
    block = blocks_at(tmp_path, "20260103T000000Z", RUN)
    assert library.find(None, tmp_path) == block, "there is no other"
    ordinary = stored(tmp_path, cell("triton_jit", 10.0))
    assert library.find(None, tmp_path) == library.find("toy", tmp_path) == ordinary
    assert library.find("20260103", tmp_path) == library.find("-block-", tmp_path) == block
    out = ("--out", str(tmp_path))
    shown = invoke("show", "20260103", *out)
    assert shown.exit_code == 0, shown.output
    assert "block of 8b, 4096 tokens (4 sequences of 1024)" in shown.output
    assert "gelu (mine/gelu): [red]3[/red] of 9" in shown.output
    assert any(line.split()[:2] == ["up", "│"] and line.split().count("900.0") == 2 for line in shown.output.splitlines()), shown.output
    assert [json.loads(line)["backend"] for line in invoke("show", "20260103", "--json", *out).stdout.splitlines()] == [
        "torch_eager", "triton_jit", "mine"]  # fmt: skip
    assert "| **triton_jit** |" in invoke("show", "20260103", "--markdown", *out).output
    assert "softmax/64x64/float16" in invoke("show", *out).output


@pytest.mark.filterwarnings("error")
def test_the_other_commands_pass_block_runs_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "shipped", lambda: tmp_path / "none")
    cells = [cell(name, us, versus_best=(us / 10, us / 10, us / 10)) for name, us in (("triton_jit", 10.0), ("torch_eager", 20.0))]
    stored(tmp_path, *cells)
    block = blocks_at(tmp_path, "20260103T000000Z", RUN)
    assert read(block) == []
    out = ("--out", str(tmp_path))
    chosen = invoke("choose", "softmax", "--shape", "64x64", "--dtype", "float16", "--device", "nvidia-toy", *out)
    assert "triton_jit" in chosen.output, chosen.output
    compared = invoke("compare", "triton_jit/softmax", "torch_eager/softmax", *out)
    assert compared.exit_code == 0, compared.output
    judged = invoke("bars", "--device", "nvidia-toy", *out)
    assert "not measured" in judged.output, judged.output


def test_of_each_block_and_set_of_ops_the_newest_run_counts(tmp_path: Path) -> None:
    products = [replace(r, ops=("matmul",)) for r in (EAGER, QUICK)]
    blocks_at(tmp_path, "20260103T000000Z", RUN)
    blocks_at(tmp_path, "20260104T000000Z", products)
    newest = blocks_at(tmp_path, "20260105T000000Z", [replace(r, seed=8) for r in RUN])
    beside = tmp_path / "nvidia-toy" / "20260101T000000Z-core-abc1234.jsonl"
    assert newest_beside(beside) == [[replace(r, seed=8) for r in RUN], products]
    assert newest_beside(newest)[0][0].seed == 8
    assert newest_beside(tmp_path / "nvidia-moon" / beside.name) == []
