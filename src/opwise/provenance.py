"""Where the running code comes from: the commit of its checkout, whether it was changed since, and a digest of each kernel's sources."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from opwise.backends import BACKENDS
from opwise.ops import OPS


@cache
def commit() -> tuple[str, bool | None]:
    """(short commit, dirty?) of the opwise checkout; ("", None) where opwise is not in one or git is missing.

    OPWISE_COMMIT names it for a copy of the tree without its .git, in the form of `git describe --always --dirty`.
    """
    given = os.environ.get("OPWISE_COMMIT")
    if given:
        return given.removesuffix("-dirty"), given.endswith("-dirty")
    root = Path(__file__).resolve().parents[2]
    head = _git(root, "rev-parse", "--short", "HEAD") if checked_out(root) else ""
    if not head:
        return "", None
    return head, bool(_git(root, "status", "--porcelain", "--untracked-files=no", "--", "src"))


def checked_out(root: Path) -> bool:
    """Returns whether this is opwise's own checkout: not an installed wheel, and not a copy inside another repository, whose commits are
    not opwise's."""
    top = _git(root, "rev-parse", "--show-toplevel") if (root / "pyproject.toml").is_file() else ""
    return bool(top) and Path(top).resolve() == root.resolve()


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


PACKAGE = Path(__file__).resolve().parent
SHARED = ("backends/calling.py", "backends/protocol.py", "backends/scratch.py")  # every call goes through them


@cache
def sources(backend: str, op: str, package: Path = PACKAGE) -> tuple[Path, ...]:
    """The files that determine how fast `backend` computes `op`, sorted: its folder and the parts of `cuda_src` it compiles, both without
    files of other ops; for matmul the configuration choice; the code common to all calls; the op's spec; and files of installed packages.
    Empty for an unknown backend.

    package: the folder that has backends/ and ops/, if asv replaces them by an old commit's."""
    module = importlib.util.find_spec(BACKENDS[backend]) if backend in BACKENDS else None
    if module is None or module.origin is None:
        return ()
    origin = Path(module.origin).resolve()
    found = _of_op(origin.parent, op) if origin.name == "__init__.py" else [origin]  # a backend of one file has no folder of its own
    for used in ("cuda_src", *(["gemm"] if op == "matmul" else []), "staged_rows.py"):
        found += _used(package / "backends" / used, found, op)
    found += _of_packages(backend, op)
    shared = [package / name for name in (*SHARED, f"ops/{op}.py")]  # an old commit has not all of them
    return tuple(sorted([*found, *(path for path in shared if path.is_file())]))


def _of_packages(backend: str, op: str) -> list[Path]:
    try:
        from opwise.backends import PACKAGES
    except ImportError:  # asv puts an old commit's backends here, to which no package adds
        return []
    return [file for place in PACKAGES.places(backend, op) for file in (_of_op(place, op) if place.is_dir() else [place])]


def _used(path: Path, found: Sequence[Path], op: str) -> list[Path]:
    """What of a folder, or which file, beside the backends' own these files compile or plan by."""
    asked = re.compile(rf"opwise\.backends(\.| import (.*, )?){path.stem}\b".encode())
    if not any(asked.search(each.read_bytes()) for each in found if each.suffix == ".py"):
        return []
    return [path] if path.is_file() else _of_op(path, op)  # [] of a folder that an old commit has not


def _of_op(folder: Path, op: str) -> list[Path]:
    """A file belongs to the first op whose name it, or a folder that it is in, has or begins with (`matmul/cost.py`, `plain/matmul.cu`);
    else to all. What is for readers (.md) is left out."""
    files = (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts and p.suffix != ".md")
    names = {p: [re.split(r"[_.]", part)[0] for part in p.relative_to(folder).parts] for p in files}
    return [p for p, parts in names.items() if next((part for part in parts if part in OPS), op) == op]


@cache
def source(backend: str, op: str, tuned: str = "", package: Path = PACKAGE) -> str:
    """A digest of `sources`, stored in records to identify the kernels they measured; "" without sources.

    tuned: the digest of the tuned tables in force (`tables`), with which the same sources launch other kernels."""
    return _digest(sources(backend, op, package), tuned)


@cache
def folder_source(folder: str, op: str) -> str:
    """A digest of a folder under backends/ and the parts of `cuda_src` it uses, both without files of other ops."""
    folders = PACKAGE / "backends"
    found = _of_op(folders / folder, op)
    found += _used(folders / "cuda_src", found, op)
    return _digest(tuple(sorted({*found, *_used(folders / "staged_rows.py", found, op)})), "")


def _digest(found: tuple[Path, ...], more: str) -> str:
    digest = hashlib.sha256()
    for path in found:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(more.encode())
    return digest.hexdigest()[:16] if found else ""


def tables(backend: str, op: str, device: torch.device) -> str:
    """The digest of the tuned tables with which `backend` computes `op` on a device of this machine; "" if only shipped ones are used."""
    try:
        from opwise.backends import tuned  # asv puts an old commit's backends here, which have no tables
    except ImportError:
        return ""
    return tuned.in_force(backend, op, device)


@cache
def changed_since(commit_: str) -> frozenset[Path] | None:
    """Files of the package that differ from those of a commit; None if unknown: no git, no checkout, or no such commit."""
    root = PACKAGE.parents[1]
    if not commit_ or not checked_out(root):
        return None
    if not _git(root, "rev-parse", "--verify", "--quiet", f"{commit_}^{{commit}}"):
        return None
    names = _git(root, "diff", "--name-only", "--no-renames", commit_, "--", "src/opwise") + "\n"
    names += _git(root, "ls-files", "--others", "--exclude-standard", "--", "src/opwise")
    return frozenset(root / name for name in names.split())
