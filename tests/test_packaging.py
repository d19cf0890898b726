"""What is installed is what is in the repository: archives hold every file once, pins cover every requirement, extras fit the driver."""

from __future__ import annotations

import email
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from unpacking import unpack

import opwise

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
BUILD = "import sys, hatchling.build as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"


def files_under(folder: Path) -> set[str]:
    """Relative names of what belongs in an archive: no bytecode, nothing hidden, and nothing that git ignores, as runs without a GPU."""
    every = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file() and not ignored(p.relative_to(ROOT)))
    return {p.as_posix() for p in every if not any(part == "__pycache__" or part.startswith(".") for part in p.parts)}


@cache
def ignored_folders() -> tuple[str, ...]:
    rules = ROOT / ".gitignore"
    lines = rules.read_text().splitlines() if rules.exists() else []
    return tuple(line.rstrip("/") for line in lines if line.endswith("/"))


def ignored(path: Path) -> bool:
    """Is it in a folder that .gitignore names?"""
    return any(fnmatch(parent.as_posix(), rule) for parent in path.parents for rule in ignored_folders())


def build(kind: str, source: Path, into: Path) -> Path:
    """An archive by the build backend's own hooks, which need no network."""
    done = subprocess.run([sys.executable, "-c", BUILD, kind, str(into)], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return into / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(sdist, wheel built from the unpacked sdist), so that an sdist that lacks something fails here."""
    if find_spec("hatchling") is None:
        pytest.skip("the build backend hatchling is not installed: pip install hatchling, or the extra test")
    folder = tmp_path_factory.mktemp("dist")
    sdist = build("sdist", ROOT, folder)
    unpack(sdist, folder)
    return sdist, build("wheel", folder / sdist.name.removesuffix(".tar.gz"), folder)


def test_the_wheel_holds_the_package_and_the_recorded_runs_once_and_nothing_else(archives: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(archives[1]) as wheel:
        held = [name for name in wheel.namelist() if ".dist-info/" not in name]
        assert any(".dist-info/licenses/LICENSE" in name for name in wheel.namelist())
    expected = {f"opwise/{name}" for name in files_under(ROOT / "src" / "opwise")}
    expected |= {f"opwise/_results/{name}" for name in files_under(ROOT / "results") if not name.startswith("asv/")}
    assert sorted(held) == sorted(expected)
    assert any(re.fullmatch(r"opwise/_results/nvidia-h200/.+-core-.+\.jsonl\.gz", name) for name in held), "no recorded run in the wheel"
    assert "opwise/py.typed" in held
    assert any(re.fullmatch(r"opwise/backends/cuda_src/.+\.(cu|cuh|h)", name) for name in held), "no CUDA source in the wheel"


def test_the_sdist_holds_what_the_repository_holds(archives: tuple[Path, Path]) -> None:
    sdist = archives[0]
    top = sdist.name.removesuffix(".tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.removeprefix(f"{top}/") for name in archive.getnames()}
        links = {member.name.removeprefix(f"{top}/"): member.linkname for member in archive if member.issym()}
    for folder in ("src", "tests", "results", "scripts", "docs", "benchmarks", "examples", "plugins"):
        assert {f"{folder}/{name}" for name in files_under(ROOT / folder)} <= held
    for name in (
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "Makefile",
        "constraints.txt",
        ".ci/run",
        "asv.conf.json",
        "asv_inplace.py",
    ):
        assert name in held
    assert links == {"ops": "src/opwise/ops", "backends": "src/opwise/backends"}
    assert not any(name.startswith(("ops/", "backends/")) for name in held), "a link was followed: its files are there twice"


def test_the_archives_carry_the_package_s_version(archives: tuple[Path, Path]) -> None:
    assert archives[0].name == f"opwise-{opwise.__version__}.tar.gz"
    with zipfile.ZipFile(archives[1]) as wheel:
        metadata = email.message_from_bytes(wheel.read(f"opwise-{opwise.__version__}.dist-info/METADATA"))
    assert metadata["Version"] == opwise.__version__
    assert metadata["License-Expression"] == "BSD-3-Clause"


def test_the_changelog_has_the_version() -> None:
    assert f"## [{opwise.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("name", ["ops", "backends"])
def test_the_links_at_the_top_lead_into_the_package(name: str) -> None:
    assert (ROOT / name).is_symlink()
    assert (ROOT / name).resolve() == ROOT / "src" / "opwise" / name


def pins(*names: str) -> dict[str, str]:
    lines = [line for name in names for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def unpinned(requirements: Iterable[str], pinned: dict[str, str]) -> list[str]:
    """Those without a pin inside their range."""
    parsed = [Requirement(text) for text in requirements]
    return [str(r) for r in parsed if not r.specifier.contains(pinned.get(canonicalize_name(r.name), "0"))]


@pytest.mark.parametrize("gpu", ["cuda12", "cuda13"])
def test_every_direct_requirement_is_pinned_inside_its_range(gpu: str) -> None:
    pinned = pins("constraints.txt", f"constraints-{gpu}.txt")
    here = [name for name in EXTRAS if name == gpu or name not in ("cuda12", "cuda13", "nvcc13")]
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"], *(r for name in here for r in EXTRAS[name])]
    assert unpinned(wanted + (EXTRAS["nvcc13"] if gpu == "cuda13" else []), pinned) == []


def test_cuda_13_s_code_generators_are_all_of_13_0() -> None:
    pinned = pins("constraints.txt", "constraints-cuda13.txt")
    generators = ("cuda-toolkit", "nvidia-cuda-nvcc", "nvidia-cuda-nvrtc", "nvidia-nvjitlink", "nvidia-nvvm", "nvidia-cuda-runtime")
    assert {name: pinned[name].rsplit(".", 1)[0] for name in generators} == dict.fromkeys(generators, "13.0")


def test_pre_commit_runs_the_pinned_ruff() -> None:
    versions = set(re.findall(r"ruff==([\d.]+)", (ROOT / ".pre-commit-config.yaml").read_text()))
    assert versions == {pins("constraints.txt")["ruff"]}


@pytest.fixture(scope="module")
def by_driver() -> Callable[[str | None], tuple[str, str]]:
    function: Callable[[str | None], tuple[str, str]] = runpy.run_path(str(ROOT / "scripts" / "choose_extra.py"))["by_driver"]
    return function


@pytest.mark.parametrize(
    ("report", "extra", "why"),
    [
        (None, "cuda13", "no nvidia-smi"),
        ("| NVIDIA-SMI 580.65.06   Driver Version: 580.65.06   CUDA Version: 13.0 |", "cuda13", "CUDA 13"),
        ("| NVIDIA-SMI 550.54.15   Driver Version: 550.54.15   CUDA Version: 12.4 |", "cuda12", "CUDA 12"),
        ("| NVIDIA-SMI 470.82.01   Driver Version: 470.82.01   CUDA Version: 11.4 |", "cuda12", "update the driver"),
        ("| Driver Version: 570.10   CUDA Version: N/A |", "cuda12", "driver 570"),
        ("| Driver Version: 590.10   CUDA Version: N/A |", "cuda13", "driver 590"),
        ("Failed to initialize NVML: Driver/library version mismatch", "cuda13", "neither"),
    ],
)
def test_the_extra_follows_the_driver(by_driver: Callable[..., tuple[str, str]], report: str | None, extra: str, why: str) -> None:
    found, reason = by_driver(report)
    assert found == extra
    assert why in reason


def test_an_unknown_extra_is_refused_with_the_known_ones() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "choose_extra.py"), "--extra", "cuda11"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cuda12, cuda13" in done.stderr
