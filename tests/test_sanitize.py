"""scripts/sanitize.py, the CPU in the GPU's place: what it launches, and what it says of a wrong result, a stop and a part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from script_modules import script
from support import or_skip

from opwise import backends
from opwise.backends.protocol import UnsupportedWorkload

sanitize = script("sanitize")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitize, "GPU", CPU)
    monkeypatch.setattr(sanitize, "implementations", lambda backend, op, device: backends.implementations(backend, op, "cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *device: None)
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")


def main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["sanitize.py", *arguments])
    return int(sanitize.main())


def stored(folder: Path, *cells: list[object]) -> str:
    file = folder / "cells.json"
    file.write_text(json.dumps(cells))
    return str(file)


def begun(err: str) -> list[str]:
    return [line.split(" s: ", 1)[1] for line in err.splitlines() if " s: " in line]


def test_parts_are_all_cells_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cells: list[list[object]] = [["torch_eager/square", f"square/{n}/float32"] for n in range(1, 8)]
    found = []
    for i in range(1, 4):
        assert main(monkeypatch, "--only", stored(tmp_path, *cells), "--part", f"{i}/3", "torch_eager") == 0
        captured = capsys.readouterr()
        each = begun(captured.err)
        assert f"{len(each)} cells checked" in captured.out
        found += each
    assert sorted(found) == [f"{name} {workload}" for name, workload in cells]


@pytest.mark.parametrize("text", ["0/3", "4/3", "2", "a/b"])
def test_a_part_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(monkeypatch, "--part", text)
    assert stop.value.code == 2
    assert text in capsys.readouterr().err


def test_cells_that_time_does_not_suffice_for_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells: list[list[object]] = [["torch_eager/square", "square/5/float32"], ["torch_eager/mean", "mean/3x4/float32"]]
    assert main(monkeypatch, "--only", stored(tmp_path, *cells), "--seconds", "-1", "torch_eager") == 1
    captured = capsys.readouterr()
    assert begun(captured.err) == []
    assert "2 cells were not begun" in captured.err


def test_a_wrong_result_is_said_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sanitize, "moved", lambda x, shifted: torch.zeros_like(x))
    assert main(monkeypatch, "--only", stored(tmp_path, ["torch_eager/square", "square/9/float32"]), "torch_eager") == 1
    assert "WRONG torch_eager/square square/9/float32: " in capsys.readouterr().out


def test_without_guarded_allocations_nothing_is_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("PYTORCH_NO_CUDA_MEMORY_CACHING")
    assert main(monkeypatch, "torch_eager") == 2
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING=1" in capsys.readouterr().err


def test_a_shifted_tensor_begins_behind_its_allocation() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    found = sanitize.moved(x, 1)
    assert torch.equal(found, x)
    assert found.storage_offset() == 1
    assert found.is_contiguous()


def test_two_configurations_of_a_workload_are_two_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is prepared once for such tensors would keep the first."""
    from opwise.backends.cuda_src import matmul

    launched: list[str] = []
    checked = matmul._on_grid
    monkeypatch.setattr(matmul, "_on_grid", lambda product, made: launched.append(made.kernel) or checked(product, made))
    for configuration in ("64x64_v16", "16x32_v16"):
        with or_skip():  # no compiler for the stand-in
            verdict = sanitize.launched(sanitize.Cell("torch_inline/matmul", "matmul/65x72x40/float16", configuration))
        assert verdict.ok
    assert len(set(launched)) == 2
    with pytest.raises(UnsupportedWorkload):
        sanitize.launched(sanitize.Cell("torch_inline/matmul", "matmul/65x72x40/float16", "no_such_tile"))
