"""softmax's kernels in Triton and their forms, and which of them the plan takes by itself, told without the GPU that it would ask."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from opwise.tuning.softmax import Softmax
from opwise.tuning.ways import Machine

if TYPE_CHECKING:
    from opwise.backends.triton_jit.softmax_offered import Way

MOST_THREADS = 1536  # of a multiprocessor, at least
PROGRAM_BYTES = 1024  # of shared memory, which each takes for itself


class TritonSoftmax(Softmax):
    def compiled(self, rows: int, columns: int, dtype: str, machine: Machine) -> dict[str, str]:
        """A kernel a length: it is compiled for how a row is cut."""
        from opwise.backends.triton_jit.softmax_offered import offered

        return {name: f"{name} {dtype} {columns}" for name in offered(rows, columns, dtype, True, machine.processors, machine.capability)}

    def own(self, rows: int, columns: int, dtype: str, machine: Machine) -> str:
        from opwise.backends.triton_jit.softmax_offered import in_turn, offered

        known = offered(rows, columns, dtype, True, machine.processors, machine.capability)
        asked = in_turn(rows, columns, dtype, machine.processors, machine.capability)
        return next(way.name for way in asked if finds_room(way, rows, columns, dtype, machine, known))


def finds_room(way: Way, rows: int, columns: int, dtype: str, machine: Machine, known: Collection[str]) -> bool:
    """Does a kernel that is asked take the rows? What its compiled programs take of a multiprocessor is estimated."""
    from opwise.backends.triton_jit import softmax_staged, softmax_stream

    if way.kind in ("cluster", "stream", "staged", "resident", "parts") and way.name not in known:
        return False
    if way.kind == "stream":
        stream = softmax_stream.Plan(columns, dtype, *way.numbers)
        return stream.groups(rows, at_once(stream.slots * stream.kib, softmax_stream.WARPS, machine)) > 0
    if way.kind in ("staged", "resident"):
        kib, warps = way.numbers
        staged = softmax_staged.Plan(columns, dtype, kib, warps, resident=way.kind == "resident")
        programs = at_once(-(-staged.chunks * staged.chunk * staged.size // 1024), staged.warps, machine)
        return programs >= staged.parts and not (staged.resident and rows * staged.parts < programs)
    return True


def at_once(kib: int, warps: int, machine: Machine) -> int:
    """Programs of so much shared memory and so many warps that a GPU holds."""
    by_memory = (machine.shared_bytes + PROGRAM_BYTES) // (kib * 1024 + PROGRAM_BYTES)
    return min(by_memory, MOST_THREADS // (32 * warps)) * machine.processors
