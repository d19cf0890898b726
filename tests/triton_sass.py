"""The machine code of Triton's kernels for sm_90, compiled in a process of its own: this one may run the interpreter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import or_skip

from opwise.backends import triton_jit

SOURCE = Path(__file__).resolve().parents[1] / "src"
CHILD = """
import subprocess, tempfile
from triton import knobs
from opwise.backends.triton_jit.common.specimen import compiled
SPECIMENS
for name, specimen in specimens.items() if isinstance(specimens, dict) else [("", each) for each in specimens]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        made = compiled(specimen, "sm_90")
        binary.write(made.asm["cubin"])
        binary.flush()
        kind = "_swap_ab" if specimen.constants.get("SWAP_AB") else specimen.constants.get("UNITS", "")
        print(f"KERNEL {name or specimen.kernel.__name__ + str(kind)}")
        print(f"shared {made.metadata.shared}", flush=True)
        subprocess.run([knobs.nvidia.cuobjdump.path, "-sass", binary.name], check=True)
"""
# Behind test_compile.py, on the same worker: what it has compiled, these find in Triton's cache.
compiled_once = pytest.mark.xdist_group("compile triton_jit sm_90")
LINE = re.compile(r"/\*([0-9a-f]{4,5})\*/\s+(?:@!?U?P\d+ )?([A-Z0-9_.]+)\s*([^;]*);")


def needs_triton() -> None:
    with or_skip():
        triton_jit.probe(torch.device("cpu"))


def disassembly(specimens: str) -> dict[str, str]:
    """Kernel -> the bytes of shared memory, and the code. `specimens`: Python lines that make a tuple of that name, or a dict by
    names of the kernels; each takes seconds."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": str(SOURCE)}
    program = CHILD.replace("SPECIMENS", specimens)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-800:]
    return {name: sass for name, _, sass in (each.partition("\n") for each in done.stdout.split("KERNEL ")[1:])}
