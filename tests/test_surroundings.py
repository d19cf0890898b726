"""What a command finds around it: streams that are closed or full, who reads no further, a home in which nothing can be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from reporting import CELL

from opwise import surroundings
from opwise.run_files import append

SOURCE = Path(__file__).resolve().parents[1] / "src"
# One process imports the command; each case is a fork of it, and tells its exit status and what it wrote to stderr.
FORKED = """
import json, os, sys
from opwise import cli, surroundings
for name, (words, fd, where) in json.load(sys.stdin).items():
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.dup2(writing, 2)
        if where == "closed":
            os.close(fd)
            setattr(sys, {1: "stdout", 2: "stderr"}[fd], None)
            surroundings.open_streams()
        elif where == "pipe":
            nobody, full = os.pipe()
            os.close(nobody)
            os.dup2(full, fd)
        elif where:
            os.dup2(os.open(where, os.O_WRONLY), fd)
        sys.argv = ["opwise", *words]
        cli.main()
    os.close(writing)
    told = open(reading).read()
    print(json.dumps({name: [os.waitstatus_to_exitcode(os.wait()[1]), told]}), flush=True)
"""
FULL = "opwise: the output could not be written: No space left on device\n"
SHOWN = ["show", "core"]
CASES: dict[str, tuple[list[str], int, str]] = {
    "full": (SHOWN, 1, "/dev/full"),
    "full, JSON": ([*SHOWN, "--json"], 1, "/dev/full"),
    "full, help": (["--help"], 1, "/dev/full"),
    "read no further": ([*SHOWN, "--json"], 1, "pipe"),
    "closed": (SHOWN, 1, "closed"),
    "stderr closed": (["show", "no-such-run"], 2, "closed"),
    "no folder": (["report", "core", "--output", "/proc/nope/report.html"], 1, "/dev/null"),
}
EXPECTED = {
    "full": [1, FULL], "full, JSON": [1, FULL], "full, help": [1, FULL], "read no further": [1, ""], "closed": [0, ""],
    "stderr closed": [2, ""],
}  # fmt: skip


def test_a_command_ends_quietly_or_with_a_line_whatever_its_streams_are(tmp_path: Path) -> None:
    append(tmp_path / "results" / "cpu" / "20260101T000000Z-core-a.jsonl", [CELL.to_json()])
    command = [sys.executable, "-c", FORKED]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, input=json.dumps(CASES), capture_output=True, text=True, timeout=120, env=environment, check=False,
                          cwd=tmp_path)  # fmt: skip
    found = {name: told for line in done.stdout.splitlines() if line.startswith('{"') for name, told in json.loads(line).items()}
    status, told = found.pop("no folder", [None, done.stderr])
    assert (status, told.count("\n"), "/proc/nope" in told) == (2, 1, True), told
    assert found == EXPECTED


def test_compilers_get_a_folder_where_theirs_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*surroundings.CACHES, "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert surroundings.writable_caches() == ""
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("HOME", "/proc/nope")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    told = surroundings.writable_caches()
    assert told.startswith("/proc/nope/.cache/torch_extensions, /proc/nope/.triton/cache cannot be written")
    for name in ("TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR"):
        Path(os.environ[name], "deeper").mkdir(parents=True, exist_ok=True)
        assert name in told
    assert os.environ["CUPY_CACHE_DIR"] == str(tmp_path)
