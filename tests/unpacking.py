"""Archives of other people's making, unpacked."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, folder: Path) -> None:
    """A tar file's content into `folder`; nothing beyond it is written to where this Python has the filter that sees to it."""
    with tarfile.open(archive) as opened:
        opened.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2, of Debian 12, has no filters
        opened.extractall(folder)
