"""rmsnorm in CUDA C++, rmsnorm.cu. This file is a module of torch_inline and one of cupy_raw: `.launch` is that backend's own launcher."""

from importlib import import_module

from torch import Tensor

from opwise.backends.cuda_src.plan import ITEM_BYTES, VECTOR_BYTES, Plan
from opwise.backends.cuda_src.recipes import Recipe
from opwise.backends.gemm.cost import alignment
from opwise.backends.protocol import Variant

PIECES, MOST_THREADS = 4, 512  # of a thread, where a row has no more; of a block


def plan(x: Tensor, weight: Tensor, out: Tensor) -> Plan:
    rows, columns = x.shape
    dtype = str(x.dtype).removeprefix("torch.")
    size = ITEM_BYTES[dtype]
    width = VECTOR_BYTES if alignment(x, weight, out) == VECTOR_BYTES and columns * size % VECTOR_BYTES == 0 else size
    warps = -(-columns * size // (width * PIECES * 32))
    return Plan(f"rmsnorm_{dtype}_v{width}", (rows, 1, 1), (min(warps * 32, MOST_THREADS), 1, 1))


RECIPE = Recipe("a block a row, in 16-byte pieces", plan, lambda x, weight, out: (x.shape[1],))
VARIANTS = {"": Variant(import_module(".launch", __package__).built(RECIPE), RECIPE.summary)}
