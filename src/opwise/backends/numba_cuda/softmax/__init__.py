"""softmax of each row, in float32, exp2((x - max) log2 e) / sum: the front door.

plan.py chooses: a row is read once and stays in registers (registers.py: of a warp's lanes up to 1024 columns, a block's up to 24576), in
shared memory with others (short.py: up to 64 columns, tuned up to 128, that are no whole 16-byte pieces), in registers
and shared memory of a block or cluster (cluster.py), or passes through blocks that share all long rows (stream.py). What none takes (other
GPUs than sm_90 beyond one block, rows above 5.5 MiB, odd lengths, unaligned storage) is read twice: odd lengths and
unaligned storage by one element an access, all else by 16 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from opwise.backends import staged_rows
from opwise.backends.numba_cuda.common import ptx
from opwise.backends.numba_cuda.common.dtypes import DTYPES, name_of
from opwise.backends.numba_cuda.common.launch import Kernel
from opwise.backends.numba_cuda.softmax.cluster import cluster_kernel
from opwise.backends.numba_cuda.softmax.plain import PLAIN, build_plain
from opwise.backends.numba_cuda.softmax.plan import STREAM, TABLE, ZEROED, Form, Share, own_threads, taken
from opwise.backends.numba_cuda.softmax.registers import in_registers, long_kernel
from opwise.backends.numba_cuda.softmax.short import short_kernel
from opwise.backends.numba_cuda.softmax.stream import stream_kernel
from opwise.backends.numba_on_cpu import gpu_of
from opwise.backends.protocol import Bind, Variant
from opwise.backends.tuned import look

__all__ = ["PLAIN", "VARIANTS", "build", "kernels"]

# Of the kernels of long rows one of each kind and of each dtype: the others are this code with other numbers, and a second each to compile.
SPECIMENS = (("float16", Form(1, 512)), ("bfloat16", Form(2, 192)), ("float32", Form(16, 1024)))
STREAM_SPECIMENS = (("float32", 4), ("bfloat16", 2))


def build(x: Tensor, out: Tensor) -> Bind:
    rows, columns = x.shape
    dtype, aligned = name_of(x), x.data_ptr() % 16 == 0 and out.data_ptr() % 16 == 0
    gpu = gpu_of(x.device)
    way = taken(rows, columns, dtype, aligned, gpu.sms, gpu.capability, look(TABLE, x.device))
    if isinstance(way, Share):
        return build_stream(x, way)
    if isinstance(way, staged_rows.Tile):
        return build_short(x, way)
    if isinstance(way, Form):
        return build_cluster(x, way, gpu.sms)
    kernel, per_block = in_registers(dtype, columns, aligned and columns % ptx.ELEMENTS[dtype] == 0, way.threads)
    return kernel.fixed((-(-rows // per_block), 1), rows, columns, device=x.device)


def build_short(x: Tensor, tile: staged_rows.Tile) -> Bind:
    """Short rows of tensors that begin on 16 bytes, through shared memory."""
    (rows, columns), dtype = x.shape, name_of(x)
    kernel, room = short_kernel(dtype, tile.lanes, tile.elements), -(-tile.height * columns * ptx.BYTES[dtype] // 16) * 16
    return kernel.fixed((-(-rows // tile.height), 1), rows, columns, tile.height, tile.turn, device=x.device, shared=room)


def build_cluster(x: Tensor, form: Form, processors: int) -> Bind:
    """Rows of whole 16-byte pieces, read once, each by a cluster of its own."""
    (rows, columns), dtype = x.shape, name_of(x)
    row_bytes = columns * ptx.BYTES[dtype]
    sizes = rows, columns, *form.apart(rows, row_bytes, processors)
    return cluster_kernel(dtype, form).fixed((rows * form.blocks, 1), *sizes, device=x.device, shared=form.shared_bytes(row_bytes))


def build_stream(x: Tensor, share: Share) -> Bind:
    """Rows of whole 16-byte pieces, read once, by blocks that all run at once."""
    (rows, columns), scratch_bytes = x.shape, share.scratch_bytes(STREAM)
    kernel = stream_kernel(name_of(x), STREAM, -(-share.blocks // 32))
    grid = share.blocks, share.groups
    return kernel.fixed(grid, rows, columns, share.part, device=x.device, scratch_bytes=scratch_bytes, zeroed=ZEROED)


def kernels() -> Mapping[str, Kernel]:
    found: dict[str, Kernel] = {}
    for dtype in DTYPES:
        for columns in (931, 1024, 4096, *([32768] if dtype == "float32" else []), 131072):
            wide = columns % ptx.ELEMENTS[dtype] == 0
            found[f"{dtype} {columns} columns"] = in_registers(dtype, columns, wide, own_threads(columns, dtype, wide))[0]
        for lanes, elements in staged_rows.FORMS[:: 2 if dtype == "bfloat16" else 1]:
            found[f"{dtype} {lanes} lanes of {elements} elements a row"] = short_kernel(dtype, lanes, elements)
        found[f"{dtype} any columns, unaligned"] = long_kernel(dtype, wide=False)
    for dtype, form in SPECIMENS:
        found[f"{dtype} {form.blocks} blocks of {form.threads} a row"] = cluster_kernel(dtype, form)
    for dtype, reads in STREAM_SPECIMENS:
        found[f"{dtype} stream, up to {32 * reads} blocks a row"] = stream_kernel(dtype, STREAM, reads)
    return found


VARIANTS = {
    "": Variant(build, "the row in registers, a long one also in shared memory, of several blocks on Hopper: read once"),
    "plain": Variant(build_plain, "a block a row, three passes, shared memory, over device arrays"),
}
