"""A repository of a few commits whose compilers answer at once: asv, its plugins, the benchmarks and the runner are the real ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GATE = ("scripts/gate.py", "scripts/gate_summary.py", "scripts/gate_verdict.py")
INSTRUMENTS = ("asv.conf.json", "asv_inplace.py", "asv_causes.py", "asv_offline.py", "benchmarks", "scripts/history.py", *GATE)
COMPILER = """
def compile_only(arch):
    return {{"square: float32": "{registers} registers, {spilled} bytes spilled, 48 instructions"}}
"""


class SmallHistory:
    """`commit` writes a commit of a package that has one backend, triton_jit, whose kernel is what it is told to be."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, ""  # what asv printed of all commits, for whoever finds one missing
        unwanted = shutil.ignore_patterns("__pycache__", "cuda_src", "torch_inline", "cupy_raw", "numba_cuda", "triton_jit", "torch_eager")
        shutil.copytree(ROOT / "src", folder / "src", ignore=unwanted)
        for name in INSTRUMENTS:
            target = folder / name
            target.parent.mkdir(exist_ok=True)
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
            copy(ROOT / name, target)
        (folder / "pyproject.toml").write_text('[project]\nname = "small"\nversion = "0"\n')
        (folder / ".gitignore").write_text(".asv/\nresults/\n__pycache__/\n")
        self.backend = folder / "src" / "opwise" / "backends" / "triton_jit"
        self.backend.mkdir()
        self.git("init", "-q", "-b", "main")

    def commit(self, what: str, registers: int = 20, spilled: int = 0, source: str | None = None) -> str:
        """The new commit's hash."""
        self.backend.joinpath("__init__.py").write_text(source or COMPILER.format(registers=registers, spilled=spilled))
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", what)
        return self.git("rev-parse", "HEAD")

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *identity, *arguments], cwd=self.folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], cwd=self.folder, env=self.environment(more), capture_output=True, text=True, check=False
        )

    def environment(self, more: Mapping[str, str] = {}) -> dict[str, str]:
        """No GPU: what is tested here must not take a minute of one."""
        clean = {k: v for k, v in os.environ.items() if k not in {"TRITON_INTERPRET", "PYTEST_CURRENT_TEST"}}
        return {**clean, "CUDA_VISIBLE_DEVICES": "", **more}

    def results(self) -> dict[str, bytes]:
        """Short commit -> its file."""
        return {path.name[:8]: path.read_bytes() for path in self.folder.glob("results/asv/*/*-*.json")}
