"""A piece of the CUDA sources by which a cluster's blocks add up their sums, as a C++ program: functions stand for the instructions.

No stand-in has clusters. What is alike whatever way sums take is here: who is running, where another block's memory is, what a part of a
sum is. The rest of the instructions, and the blocks' order, are the test's own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER = os.environ.get("CXX", "c++")
needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"the C++ compiler {COMPILER!r} was not found: install g++")
AROUND = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>
#define __device__
#define __forceinline__ inline
using SharedAddress = unsigned;
int rank_now, thread_now;
void demand(bool so, const char *what) { if (!so) std::printf("%s\n", what), std::exit(1); }
int thread_index() { return thread_now; }
SharedAddress of_block(SharedAddress at, int rank) { return at | rank << 24; }
float sum(float a, float b) { return a + b; }
float part_of(int rank, int row, int column) { return 1.0f / (1 + rank) + row * 3.0f + column * 0.37f; }  // sums depend on their order
"""


def said_by(text: str, folder: Path) -> str:
    """What the program AROUND + text prints. It must end well: what is demanded in vain is printed instead."""
    (folder / "cluster.cpp").write_text(AROUND + text)
    subprocess.run([COMPILER, "-std=c++17", "-O1", "-w", "cluster.cpp", "-o", "cluster"], cwd=folder, check=True)
    done = subprocess.run([folder / "cluster"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout
