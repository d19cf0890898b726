"""The extension, built once for these sources, this torch, this toolchain and this architecture; later processes load the file.

It is stored below TORCH_EXTENSIONS_DIR (torch's variable), else in torch's cache folder. A file lock lets one process build while others
wait; unlike torch's lock file it is released when its process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib.util
import logging
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

from opwise.backends.cuda_src.sources import FOLDER, digest, units
from opwise.backends.torch_inline.toolchain import Toolchain, toolchain

log = logging.getLogger(__name__)
BINDING = Path(__file__).with_name("binding.cpp")


@cache
def extension(arch: str) -> tuple[Any, ctypes.CDLL]:
    """(module, library in which kernels are looked up by name) for an architecture (as "sm_90").

    Raises RuntimeError with the compiler's message if the build fails, BackendUnavailable if there is no compiler.
    """
    tools = toolchain()
    name = f"opwise_inline_{arch}"
    key = digest(BINDING.read_text(), torch.__version__, sys.version, tools.nvcc_version, tools.cxx_version, *tools.nvcc_flags(arch))
    folder = build_root() / f"{name}_{key}"
    library = folder / f"{name}.so"
    done = folder / "complete"  # a killed linker may leave an incomplete library
    folder.mkdir(parents=True, exist_ok=True)
    if not (done.exists() and library.exists()):
        with _locked(folder / "opwise.lock"):
            if not (done.exists() and library.exists()):
                _build(name, folder, arch, tools)
                done.touch()
    return _imported(name, library), ctypes.CDLL(str(library))


def build_root() -> Path:
    """The folder in which torch builds extensions."""
    from torch.utils.cpp_extension import get_default_build_root

    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(name: str, folder: Path, arch: str, tools: Toolchain) -> None:
    tools.check_for_torch()
    (folder / "lock").unlink(missing_ok=True)  # a stale lock file of torch, which would wait for it forever; we hold our own lock
    sources = [folder / BINDING.name]
    shutil.copyfile(BINDING, sources[0])
    for unit, text in units(arch).items():
        sources.append(folder / f"unit_{unit}.cu")  # "unit_": its include of {unit}.cu must not find itself
        sources[-1].write_text(text)
    log.warning("building the extension for %s with nvcc %s: a minute or so, once (%s)", arch, tools.nvcc_version, folder)
    began = time.monotonic()
    compile_and_link(name, folder, sources, tools.nvcc_flags(arch), tools)
    log.info("built in %.0f s", time.monotonic() - began)


def compile_and_link(name: str, folder: Path, sources: list[Path], nvcc_flags: list[str], tools: Toolchain) -> None:
    """torch's `load`. --as-needed: drops the libraries that torch links and the kernels do not use."""
    from torch.utils import cpp_extension

    with toolkit(tools, folder) as found:
        cpp_extension.load(
            name,
            [str(source) for source in sources],
            extra_cflags=["-O2"],
            extra_cuda_cflags=nvcc_flags,
            extra_ldflags=["-Wl,--as-needed", found],
            extra_include_paths=[str(FOLDER)],
            build_directory=str(folder),
            with_cuda=True,
            is_python_module=False,  # the caller loads it
        )


@contextlib.contextmanager
def toolkit(tools: Toolchain, folder: Path) -> Iterator[str]:
    """Sets the CUDA toolkit of torch's `load` and `load_inline` within the block. Yields the linker flag for its runtime."""
    from torch.utils import cpp_extension

    before, cpp_extension.CUDA_HOME = cpp_extension.CUDA_HOME, str(tools.cuda_home)
    try:
        yield f"-L{shlex.quote(str(_runtime(folder, tools)))}"
    finally:
        cpp_extension.CUDA_HOME = before


def _runtime(folder: Path, tools: Toolchain) -> Path:
    """A folder with libcudart.so: the PyPI wheels have it only under its versioned name, to which a link is made."""
    for lib in (tools.cuda_home / "lib64", tools.cuda_home / "lib"):
        if (lib / "libcudart.so").exists():
            return lib
        for versioned in sorted(lib.glob("libcudart.so.*")):
            link = folder / "libcudart.so"
            link.unlink(missing_ok=True)
            link.symlink_to(versioned)
            return folder
    return folder


def _imported(name: str, library: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, library)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{library} cannot be imported: remove its folder, so that it is built anew")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
