"""Puts the links `ops` and `backends` into the sdist: hatchling would follow them, and pack their files twice."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Links(BuildHookInterface):
    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        sdist = Path(artifact_path)
        content = io.BytesIO(gzip.decompress(sdist.read_bytes()))
        with tarfile.open(fileobj=content, mode="a") as archive:
            for name in ("ops", "backends"):
                link = tarfile.TarInfo(f"{sdist.name.removesuffix('.tar.gz')}/{name}")
                link.type, link.linkname, link.mtime = tarfile.SYMTYPE, f"src/opwise/{name}", archive.getmembers()[0].mtime
                archive.addfile(link)
        sdist.write_bytes(gzip.compress(content.getvalue(), mtime=0))
