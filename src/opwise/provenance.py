"""Where the code that runs comes from: the commit of the checkout that holds it, and whether it was changed since."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path


@cache
def commit() -> tuple[str, bool | None]:
    """(short commit, dirty?) of the opwise checkout; ("", None) where opwise is not in one or git is missing.

    OPWISE_COMMIT names it for a copy of the tree without its .git, in the form of `git describe --always --dirty`.
    """
    given = os.environ.get("OPWISE_COMMIT")
    if given:
        return given.removesuffix("-dirty"), given.endswith("-dirty")
    root = Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").is_file():  # installed as a wheel: whatever repository is around it is not opwise's
        return "", None
    head = _git(root, "rev-parse", "--short", "HEAD")
    if not head:
        return "", None
    return head, bool(_git(root, "status", "--porcelain", "--untracked-files=no", "--", "src"))


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
