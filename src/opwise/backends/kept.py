"""Where backends keep on disk what they compiled: below OPWISE_CACHE_DIR, else ~/.cache/opwise, for all processes of this user."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path


def folder() -> Path:
    """It is there. Where nothing can be written (a read-only home) it is one of this process alone, which compiles anew."""
    root = os.environ.get("OPWISE_CACHE_DIR")
    found = Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opwise"
    try:
        found.mkdir(parents=True, exist_ok=True)
        if os.access(found, os.W_OK):
            return found
    except OSError:
        pass
    return Path(_temporary().name)


def keep(path: Path, content: bytes) -> None:
    """Whole or not at all: other processes may be reading it, or writing the same. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="opwise-")
