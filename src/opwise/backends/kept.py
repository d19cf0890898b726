"""The on-disk cache of compiled kernels, shared by a user's processes: OPWISE_CACHE_DIR, else XDG_CACHE_HOME/opwise or ~/.cache/opwise."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path


def folder() -> Path:
    """The cache's folder, which exists. If it is not writable (a read-only home), a temporary folder of this process."""
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
    """Writes the file atomically, since other processes may read or write it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="opwise-")
