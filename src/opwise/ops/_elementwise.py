"""Shared by the specs of square, gelu and mean: dtypes, workload sets, and the cost of an elementwise op."""

from __future__ import annotations

from opwise.ops.spec import Cost, Workload, elements, over_dtypes

DTYPES = ("float32", "float16", "bfloat16")
# 1024 elements to 1 GiB of float32: launch-bound, L2-sized, odd (1823 x 781), and larger than any L2.
CORE = ((1024,), (1024, 1024), (1823, 781), (4096, 4096), (8192, 8192), (10007, 10009), (16384, 16384))
SWEEP = tuple((2**k,) for k in range(10, 29, 2))
GRID = (*((2**k,) for k in range(12, 29, 2)), (5_003,), (300_007,), (20_000_003,))  # measured points; the choice interpolates between them
SMOKE = ((1,), (33,), (37, 53))


def same_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape)


def copy_cost(workload: Workload, flops_per_element: int) -> Cost:
    """The cost of an elementwise op: each element is read once and written once."""
    n = elements(workload.shape)
    size = workload.torch_dtype.itemsize
    return Cost(read_bytes=n * size, write_bytes=n * size, flops=n * flops_per_element)


def workload_sets(op: str, seed: tuple[Workload, ...]) -> dict[str, tuple[Workload, ...]]:
    return {
        "smoke": over_dtypes(op, SMOKE, DTYPES),
        "seed": seed,
        "core": over_dtypes(op, CORE, DTYPES),
        "sweep": over_dtypes(op, SWEEP, DTYPES),
        "grid": over_dtypes(op, GRID, DTYPES),
    }
