"""The set `random`: 120 random shapes of each op, drawn from a fixed SEED, the same on every machine.

Sides are log-uniform from 1 up. A draw with too large a tensor or product is repeated. Dtypes alternate. In every second shape the rows
of all tensors are multiples of 16 bytes; in the others no tensor's rows are.
"""

from __future__ import annotations

import itertools
import math
from random import Random

from opwise.ops.spec import DTYPES, Workload

SEED = 20261127
COUNT = 120
VECTOR_BYTES = 16
MOST_ELEMENTS = 2**27  # of a tensor
MOST_PRODUCTS = 2**37  # multiply-adds of a matmul
# Largest sides: rows and columns, or M, K and N.
SIDES = {
    **dict.fromkeys(("square", "mean", "gelu"), (2**14, 2**14)),
    "softmax": (2**20, 2**20),
    "matmul": (2**14, 2**14, 2**14),
}


def drawn(op: str, dtypes: tuple[str, ...]) -> tuple[Workload, ...]:
    """COUNT different workloads of an op of SIDES."""
    draw = Random(f"{SEED} {op}")
    found: dict[Workload, None] = {}
    while len(found) < COUNT:
        number = len(found)
        dtype = dtypes[number // 2 % len(dtypes)]
        piece = VECTOR_BYTES // DTYPES[dtype].itemsize
        sides = [round(2 ** draw.uniform(0, math.log2(side))) for side in SIDES[op]]
        for i in range(1, len(sides)):  # columns, or K and N: the sides along rows
            sides[i] = max(sides[i] // piece, 1) * piece
            if number % 2:
                sides[i] -= draw.randrange(1, piece)
        tensors = itertools.combinations(sides, 2)
        if max(a * b for a, b in tensors) <= MOST_ELEMENTS and math.prod(sides) <= MOST_PRODUCTS:
            found[Workload(op, tuple(sides), dtype)] = None
    return tuple(found)
