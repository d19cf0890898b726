"""Cubins of every kernel, for a machine that has no tileiras: python -m opwise_cutile sm_90 [sm_100 ...]"""

from __future__ import annotations

import sys

from opwise.backends.kept import folder

from opwise_cutile import compile_only
from opwise_cutile.tileiras import tileiras

for arch in sys.argv[1:]:
    sys.stdout.write(f"{arch}: {len(compile_only(arch))} kernels\n")
sys.stdout.write(f"take {folder() / 'cutile' / tileiras()[1]} along, and set OPWISE_CUTILE_CUBINS to where it is\n")
