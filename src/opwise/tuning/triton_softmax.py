"""softmax's kernels in Triton and their forms, and which of them the plan takes by itself, told without the GPU that it would ask."""

from __future__ import annotations

from opwise.ops.spec import Workload
from opwise.tuning.softmax import Softmax
from opwise.tuning.ways import Machine

MOST_THREADS = 1536  # of a multiprocessor, at least
PROGRAM_BYTES = 1024  # of shared memory, which each takes for itself


class TritonSoftmax(Softmax):
    def compiled(self, rows: int, columns: int, dtype: str, machine: Machine) -> dict[str, str]:
        """A kernel a length: it is compiled for how a row is cut."""
        from opwise.backends.triton_jit.softmax_offered import offered

        return {name: f"{name} {dtype} {columns}" for name in offered(rows, columns, dtype, True, machine.processors, machine.capability)}

    def own(self, rows: int, columns: int, dtype: str, machine: Machine) -> str:
        """As softmax.py asks its kernels in turn, with what their compiled programs take of a multiprocessor estimated."""
        from opwise.backends.triton_jit import softmax_cluster, softmax_offered, softmax_staged, softmax_stream, softmax_warps
        from opwise.backends.triton_jit.clusters import KNOWN
        from opwise.backends.triton_jit.softmax_offered import LONGEST_ROW_IN_REGISTERS, LONGEST_ROW_IN_TILE, Way

        if columns <= LONGEST_ROW_IN_TILE:
            return softmax_offered.own_tile(rows, columns).name
        size, processors = Workload("softmax", (rows, columns), dtype).torch_dtype.itemsize, machine.processors
        warps = softmax_warps.planned(rows, columns * size, dtype, processors) if machine.capability == softmax_offered.HOPPER else None
        if warps is not None and KNOWN:
            return "warps"
        form = softmax_cluster.form_of(rows, columns * size, dtype, processors) if machine.capability[0] == 9 else None
        if form is not None:
            return Way("cluster", (form.blocks, form.warps, form.held, form.shared_by)).name
        known = softmax_offered.offered(rows, columns, dtype, True, processors, machine.capability)
        stream, staged = softmax_stream.planned(columns, dtype), softmax_staged.planned(columns, dtype)
        if stream and stream.groups(rows, at_once(stream.slots * stream.kib, softmax_stream.WARPS, machine)):
            way = Way("stream", (stream.kib, stream.slots, stream.later))
            if way.name in known:
                return way.name
        if staged:
            programs = at_once(-(-staged.chunks * staged.chunk * size // 1024), staged.warps, machine)
            way = Way("resident" if staged.resident else "staged", (staged.kib, staged.warps))
            if way.name in known and programs >= staged.parts and not (staged.resident and rows * staged.parts < programs):
                return way.name
        if columns <= LONGEST_ROW_IN_REGISTERS:
            return softmax_offered.own_row(columns).name
        return "parts" if "parts" in known else "twice"


def at_once(kib: int, warps: int, machine: Machine) -> int:
    """Programs of so much shared memory and so many warps that a GPU holds."""
    by_memory = (machine.shared_bytes + PROGRAM_BYTES) // (kib * 1024 + PROGRAM_BYTES)
    return min(by_memory, MOST_THREADS // (32 * warps)) * machine.processors
