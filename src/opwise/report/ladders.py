"""The ladders of docs/kernels.md: an implementation's variants from the textbook's to the one to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opwise.record import Record


@dataclass(frozen=True)
class Ladder:
    """The variants of an implementation from the slowest to the one to use, "", and the workloads at which they are shown."""

    name: str
    rungs: tuple[str, ...]
    workloads: tuple[str, ...]

    def rung(self, variant: str) -> str:
        return f"{self.name}:{variant}" if variant else self.name


SOFTMAX = ("softmax/4096x4096/float32", "softmax/4096x4096/float16", "softmax/2048x131072/float32")
LADDERS = (
    Ladder("torch_inline/softmax", ("textbook", "coalesced", "online", "registers", ""), SOFTMAX),
    Ladder("triton_jit/softmax", ("passes", "online", ""), SOFTMAX),
    Ladder("torch_inline/matmul", ("textbook", "shared", "registers", "vectors", "mma", ""),
           ("matmul/4096x4096x4096/float32", "matmul/4096x4096x4096/float16")),
    Ladder("triton_jit/matmul", ("textbook", "tiles", "grouped", "pointers", ""),
           ("matmul/4096x4096x4096/float16", "matmul/8192x8192x8192/float16")),
)  # fmt: skip

Cells = Mapping[tuple[str, str], Record]  # by implementation and workload


def cells(records: Sequence[Record]) -> Cells:
    return {(r.implementation, str(r.workload)): r for r in records if r.stand_in is None}


def told(us: float) -> str:
    """Four digits, or whole microseconds."""
    return f"{us:.4g} us" if us < 1e4 else f"{us:.0f} us"


def newest(ladder: Ladder, found: Sequence[Sequence[Record]]) -> Sequence[Record]:
    """The last of these runs, oldest first, that has the whole ladder; () where none has."""
    wanted = {(ladder.rung(variant), workload) for variant in ladder.rungs for workload in ladder.workloads}
    return next((run for run in reversed(found) if wanted <= cells(run).keys()), ())
