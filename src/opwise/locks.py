"""A lock that a process holds on a file until it releases it or ends; the kernel then releases it (flock)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Taken(RuntimeError):
    """Another process holds the lock. `holder` is what it wrote about itself, "" where it wrote nothing."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is held by {holder or 'another process'}")
        self.path, self.holder = path, holder


class Lock:
    """Exclusive, and never waits. With `told`, the file belongs to the lock and names the holder; without, the file is left unchanged."""

    def __init__(self, path: Path, told: str = "") -> None:
        """Raises Taken, and OSError where the file cannot be opened."""
        self._descriptor: int | None = os.open(path, os.O_RDWR | (os.O_CREAT if told else 0), 0o600)  # not inherited by a worker
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip() if told else ""
            self.release()
            if isinstance(error, BlockingIOError):
                raise Taken(path, holder) from error
            raise
        if told:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, told.encode(), 0)

    def release(self) -> None:
        """Releases the lock. The file stays: removing it could leave two processes holding two files of one name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
