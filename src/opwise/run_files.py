"""A run's file: JSON lines under results/<device>/, appended to.

A line is written by one `write` on a file opened for appending, so concurrent writers interleave whole lines and a killed run loses at most
the line it was writing. The reader skips a torn last line with a warning. A finished run may be compressed to `.jsonl.gz`; it can be read,
but nothing is appended to it."""

from __future__ import annotations

import gzip
import json
import os
import warnings
import zlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PACKED = ".gz"  # a run's file may be compressed


def append(path: Path, lines: Iterable[str]) -> None:
    """Appends whole lines, each by one write, and creates the folder if it is missing. Raises OSError."""
    if path.suffix == PACKED:
        raise OSError(f"{path} is compressed, and nothing can be appended to it: gunzip {path.name}, then give {run_name(path)}.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        for line in lines:
            data = (line + "\n").encode()
            if os.write(descriptor, data) != len(data):
                raise OSError(f"{path}: only part of a record could be written: is the disk full?")
    finally:
        os.close(descriptor)


def lines(path: Path) -> list[tuple[int, str]]:
    """(number, line) pairs, split at newlines only: a text may hold other line separators such as U+2028. Raises OSError."""
    return list(enumerate(text(path).split("\n"), start=1))


def text(path: Path) -> str:
    """The file's text without a byte-order mark. Raises OSError."""
    data = path.read_bytes()
    if path.suffix == PACKED:
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise OSError(f"{path} is cut off or damaged ({error}): take it from git, or compress the run again") from error
    return data.decode("utf-8-sig", errors="replace")


def parsed(path: Path, number: int, line: str) -> Iterator[Any]:
    """Yields the parsed line; nothing, with a warning, if it is torn."""
    try:
        yield json.loads(line)
    except (ValueError, RecursionError):  # no JSON, a number of thousands of digits, or lists in lists without an end
        if line.strip():
            warnings.warn(f"{path}:{number}: a torn record is skipped", stacklevel=4)


def skipping(path: Path, number: int, why: Exception) -> None:
    warnings.warn(f"{path}:{number}: a record is skipped: {why}", stacklevel=4)


def new_run(folder: Path, device_slug: str, label: str, commit: str) -> Path:
    """The file of a run that starts now: results/<device>/<UTC time>-<set>-<commit>.jsonl; unique even within one second."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = folder / device_slug / f"{stamp}-{label}-{commit or 'nocommit'}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    suffix = 0
    while True:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            return path
        except FileExistsError:
            suffix += 1
            path = path.with_name(f"{stamp}-{label}-{commit or 'nocommit'}-{suffix}.jsonl")


def run_name(path: Path) -> str:
    """A run's file name without `.jsonl` or `.jsonl.gz`."""
    return path.name.removesuffix(PACKED).removesuffix(".jsonl")


def runs(folder: Path, device_prefix: str = "") -> list[Path]:
    """Every run under a results folder, oldest first: the names begin with the UTC time."""
    return runs_like(folder, f"{device_prefix}*/*")


def runs_like(folder: Path, pattern: str) -> list[Path]:
    """The runs whose path without its suffix matches a glob, oldest first. Of a run that exists both ways, only the uncompressed file."""
    paths = (path for suffix in (f".jsonl{PACKED}", ".jsonl") for path in folder.glob(pattern + suffix))
    return sorted({path.parent / run_name(path): path for path in paths}.values(), key=run_name)
