"""Fixes up a command's environment before anything else is imported: closed standard streams, and unwritable cache folders."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path

# Where compilers keep what they built unless the variable names another folder. Numba and CUDA do without.
CACHES = {
    "TORCH_EXTENSIONS_DIR": ("XDG_CACHE_HOME", ".cache", "torch_extensions"),
    "CUPY_CACHE_DIR": ("", ".cupy", "kernel_cache"),
    "TRITON_CACHE_DIR": ("", ".triton", "cache"),
}


def open_streams() -> None:
    """Opens a closed standard stream (`opwise show >&-`) on /dev/null; otherwise the next opened file would take its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False, encoding="utf-8"))  # noqa: SIM115


def writable_caches() -> str:
    """Gives compilers, in this process and its workers, a writable cache folder where theirs is not; returns a message about it, else
    ""."""
    places = {name: _place(*parts) for name, parts in CACHES.items() if not os.environ.get(name)}
    lacking = {name: place for name, place in places.items() if not _writable(place)}
    if not lacking:
        return ""
    folder = _own_folder()
    for name, place in lacking.items():
        os.environ[name] = str(folder / place.name)
    cannot, names = ", ".join(map(str, lacking.values())), ", ".join(lacking)
    return f"{cannot} cannot be written: compilers keep what they make in {folder}; set HOME, or {names}, to keep it elsewhere"


def _place(root: str, below: str, name: str) -> Path:
    given = os.environ.get(root) if root else ""
    return Path(given) / name if given else Path("~", below, name).expanduser()


def _writable(folder: Path) -> bool:
    """Could it be made, or written in? Asked by doing it: permissions do not tell of what is no real disk."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        Path(tempfile.mkdtemp(prefix=".opwise-", dir=there)).rmdir()
    except OSError:
        return False
    return True


def _own_folder() -> Path:
    """The same for all commands of this user, and nobody else's."""
    folder = Path(tempfile.gettempdir()) / f"opwise-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="opwise-"))
