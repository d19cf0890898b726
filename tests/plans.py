"""What the matmul plan of CUDA C++ takes for a product."""

from __future__ import annotations

from opwise.backends.cuda_src.matmul import plan
from opwise.backends.gemm.cost import Product
from opwise.backends.gemm.gpu import HOPPER, Machine


def kernel_for(kind: str, m: int, k: int, n: int, alignment: int = 16, machine: Machine = HOPPER) -> str:
    return plan(Product(m, k, n, kind, alignment), machine).kernel
