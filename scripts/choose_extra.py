"""Prints the extras that this machine needs, joined by commas: cuda13 or cuda12 by the driver, and nvcc13 where there is no nvcc.

Only the answer goes to stdout; why, and what has to be done by hand, goes to stderr. `--extra` overrides the driver's answer.
Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

EXTRAS = ("cuda12", "cuda13")
CUDA_13_DRIVER = 580  # the first driver branch that runs CUDA 13

TORCH_FOR_CUDA_12 = (
    "cuda12 needs a CUDA 12 build of torch, and torch 2.13.0 on PyPI is a CUDA 13 build: point pip at an index that holds one,\n"
    "  PIP_EXTRA_INDEX_URL=<index of CUDA 12 builds> make run\n"
    "or at wheels on disk with PIP_FIND_LINKS. A driver from 580 on needs none of this."
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the extras of opwise that this machine needs.")
    parser.add_argument("--extra", default="", help="cuda12 or cuda13; default: what nvidia-smi reports")
    wanted = parser.parse_args().extra
    if wanted and wanted not in EXTRAS:
        sys.exit(f"EXTRA={wanted}: unknown; known are {', '.join(EXTRAS)}; leave it out to go by nvidia-smi")
    extra, why = (wanted, "as asked") if wanted else by_driver(driver_report())
    tell(f"{extra}: {why}")
    if extra == "cuda12":
        tell(TORCH_FOR_CUDA_12)
    print(",".join([extra, *compiler(extra, has_nvcc())]))


def by_driver(report: str | None) -> tuple[str, str]:
    """The extra for what nvidia-smi printed (None: there is no nvidia-smi), and why."""
    if report is None:
        return "cuda13", "no nvidia-smi here, and torch on PyPI is a CUDA 13 build"
    driver = re.search(r"Driver Version\s*:\s*(\d+)", report)
    cuda = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+)", report)
    if cuda:
        too_old = ": too old for any extra, update the driver to 580 or later" if int(cuda[1]) < 12 else ""
        return ("cuda13" if int(cuda[1]) >= 13 else "cuda12"), f"nvidia-smi reports CUDA {cuda[1]}{too_old}"
    if driver:
        return ("cuda13" if int(driver[1]) >= CUDA_13_DRIVER else "cuda12"), f"nvidia-smi reports driver {driver[1]}"
    return "cuda13", "nvidia-smi reports neither a driver nor a CUDA version"


def compiler(extra: str, found: bool) -> list[str]:
    """The extra that brings nvcc, where it is needed and exists."""
    if found:
        return []
    if extra == "cuda13":
        tell("nvcc13: no nvcc here, so it comes from its wheel; it also needs a C++ compiler (g++)")
        return ["nvcc13"]
    tell("no nvcc here, and none in CUDA 12's wheels: torch_inline will be unavailable until the CUDA toolkit is installed")
    return []


def driver_report() -> str | None:
    """What nvidia-smi prints; None where it is missing. A broken driver prints why on stdout: that is a report too."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        return subprocess.run([program], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi failed: {error}"


def has_nvcc() -> bool:
    """Is there an nvcc where torch looks for one: CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda?"""
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    return shutil.which("nvcc") is not None or any(home and (Path(home) / "bin" / "nvcc").is_file() for home in homes)


def tell(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
