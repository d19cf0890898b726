"""softmax over rows in Triton, read once where that is possible: by the first of these that can (configurations.in_turn).

    plain.py     the shortest way, which a tutorial has
    block.py     up to 1024 columns several rows a program, as a tile; up to 32768 columns one row a program, in registers
    cluster.py   sm_90, rows above 32 KiB (float32 60 KiB) to 1 MiB: a row in the programs of a thread block cluster
    stream.py    sm_90, rows above 1 MiB to 4 MiB: persistent programs that stream rows through shared memory
    twice.py     longer rows that are read twice: off 16 elements, above 4 MiB, on other GPUs, in Triton's interpreter

exp is 2^(log2(e) (x - max)): the difference is rounded before it is scaled, or rows far from zero would lose all digits. A nan is
dropped by the maximum and comes back through the sum. The exponential must not flush subnormals, so it is written as PTX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from opwise.backends.protocol import Bind, Variant
from opwise.backends.triton_jit.common.specimen import Specimen
from opwise.backends.triton_jit.softmax import block, cluster, ladder, plain, stream, twice
from opwise.backends.triton_jit.softmax.configurations import TABLE, tuned, untuned
from opwise.backends.tuned import NoSuchConfiguration, look


def build(x: Tensor, out: Tensor) -> Bind:
    choices = look(TABLE, x.device)
    if way := tuned(x, out, choices):
        if bind := BUILDS[way.kind](x, out, *way.numbers):
            return bind
        if choices.forced:
            raise NoSuchConfiguration(f"this GPU has not the room for {way.name}, or too few rows are given")
    return next(bind for way in untuned(x) if (bind := BUILDS[way.kind](x, out, *way.numbers)))


# By configurations.Way's kinds; each takes the tensors and a way's numbers, and gives None where it cannot.
BUILDS: Mapping[str, Callable[..., Bind | None]] = {
    "tile": block.build_tile,
    "flat": block.build_flat,
    "row": block.build_row,
    "cluster": cluster.build,
    "stream": stream.build,
    "twice": twice.build,
}
VARIANTS = {
    "": Variant(build, "rows in registers or in shared memory, long ones shared by several programs"),
    "plain": Variant(plain.build, "kernel[grid](...), one row a program as one block"),
    **{rung: Variant(each, ladder.SUMMARIES[rung]) for rung, each in ladder.BUILDS.items()},
}


def specimens(arch: str) -> dict[str, Specimen]:
    hopper = {}
    if int(arch[3:]) == 90:
        hopper = cluster.specimens() | stream.specimens()
    return block.specimens() | twice.specimens() | plain.specimens() | ladder.specimens() | hopper
