"""The tables of docs/inspecting.md: what a cell says, what is told of a spill, and that every implementation has its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from script_modules import script
from support import or_skip

from opwise.backends import BACKENDS
from opwise.inspecting.compilers import COMPILERS, _first_error, variants
from opwise.ops import OPS

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def facts() -> Any:
    return script("compile_facts")


def row(kernel: str, arch: str, **changed: Any) -> dict[str, Any]:
    found = {"status": "ok", "reason": "", "registers": 40, "spilled_bytes": 0, "stack_bytes": 0, "classes": {}, "accesses": {}}
    return {"implementation": "triton_jit/softmax", "kernel": kernel, "dtype": kernel.split(",")[0], "arch": arch, **found, **changed}


def test_a_cell_counts_kernels_registers_spills_and_what_cannot_be_had(facts: Any) -> None:
    found = [
        row("float16, a", "sm_86"),
        row("float16, b", "sm_86", registers=255, spilled_bytes=8),
        row("float16, c", "sm_86", status="n/a"),
    ]
    assert facts.cell(found) == "2: 40-255, 1 spill, 1 n/a"
    assert facts.cell(found[:1]) == "1: 40"
    assert facts.cell(found[2:]) == "1 n/a"
    assert facts.blemishes(row("float16, d", "sm_86", accesses={"local load": {"4": 1}})) == ["spill"], "a stack counts, whoever made it"
    assert facts.blemishes(row("float16, e", "sm_86", classes={"double": 3})) == ["double"]


def test_dtypes_that_are_alike_share_a_line(facts: Any) -> None:
    lines = facts.overview([row("float16, a", "sm_86"), row("bfloat16, a", "sm_86"), row("float32, a", "sm_86", registers=50)])
    assert lines[2:] == [
        "| `triton_jit/softmax` | float32 |  | 1: 50 |  |  |", "| `triton_jit/softmax` | float16, bfloat16 |  | 1: 40 |  |  |",
    ]  # fmt: skip


@pytest.mark.parametrize(("arch", "status"), [("sm_120", 1), ("sm_75", 0)])
def test_a_spill_that_is_not_listed_ends_with_status_1(
    facts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arch: str, status: int
) -> None:
    """Where opwise runs: for older GPUs what spills is only shown."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(row("float16, a", arch, spilled_bytes=8)) + "\n")
    monkeypatch.setattr("sys.argv", ["compile_facts.py", str(rows)])
    assert facts.main() == status
    told = capsys.readouterr()
    assert ("triton_jit/softmax float16, a on sm_120: spill" in told.err) == bool(status)
    assert ("| 8 bytes spilled | sm_120 |" in told.out) == bool(status)


@pytest.mark.parametrize("backend", COMPILERS)
def test_every_implementation_has_its_line_on_the_page(facts: Any, backend: str) -> None:
    assert backend in BACKENDS
    table = (ROOT / "docs" / "inspecting.md").read_text(encoding="utf-8").partition(facts.BEGIN)[2].partition(facts.END)[0]
    for op in OPS:
        with or_skip(ImportError, backend):
            known = variants(backend, op)
        assert not known or f"| `{backend}/{op}` |" in table, f"{backend}/{op}: run scripts/compile_facts.py --write"


def test_of_what_triton_says_it_is_ptxas_own_line_that_is_told() -> None:
    said = "PTXAS error: Internal Triton PTX codegen error\n`ptxas` stderr:\nptxas /x.ptx, 2; error   : Feature '.tf32' requires sm_80\n"
    assert _first_error(said) == "Feature '.tf32' requires sm_80"
    assert _first_error("no such kernel\nat all") == "no such kernel"
