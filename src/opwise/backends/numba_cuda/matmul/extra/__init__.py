"""Tiles that serve only skinny and tiny products, by the same kernels (fma, mma_sync). OPWISE_EXTRA=off leaves them out of the plan."""

from __future__ import annotations

from opwise.backends.numba_cuda.matmul.configurations import Cost, Costs, FmaTile, MmaTile

# Few rows, a large B that is read once; few columns; products of few elements.
FMA_16X128, FMA_16X64 = FmaTile(16, 128, 8, 4, stages=6), FmaTile(16, 64, 4, 4, stages=6)
FMA_64X32, FMA_32X32 = FmaTile(64, 32, 8, 4, stages=6), FmaTile(32, 32, 4, 4, stages=6)
MMA_16X64, MMA_32X64, MMA_32X32 = MmaTile(16, 64, 1, 2, 6, 6), MmaTile(32, 64, 2, 2, 4, 5), MmaTile(32, 32, 1, 2, 6, 8)

COSTS: Costs = {
    ("float32", True): {
        FMA_64X32: Cost(5, 2.3, 30.4, 17.6),
        FMA_32X32: Cost(8, 1.9, 19.1, 9.8),
        FMA_16X128: Cost(4, 1.9, 29.0, 15.6),
        FMA_16X64: Cost(7, 1.9, 17.6, 9.4),
    },
    ("float32", False): {
        FMA_64X32: Cost(5, 1.8, 32.2, 18.8),
        FMA_32X32: Cost(8, 2.2, 18.0, 11.1),
        FMA_16X128: Cost(4, 2.1, 34.6, 20.1),
        FMA_16X64: Cost(7, 2.3, 18.8, 10.8),
    },
    ("tfloat32", True): {
        MMA_32X64: Cost(5, 2.3, 16.5, 11.7),
        MMA_32X32: Cost(8, 2.3, 13.5, 5.8),
        MMA_16X64: Cost(6, 2.3, 14.5, 7.0),
    },
    ("tfloat32", False): {
        MMA_32X64: Cost(4, 1.4, 23.6, 16.7),
        MMA_32X32: Cost(8, 2.1, 17.7, 12.4),
        MMA_16X64: Cost(6, 2.1, 18.7, 12.5),
    },
    ("16-bit", True): {
        MMA_32X64: Cost(5, 3.2, 6, 3.8),
        MMA_32X32: Cost(8, 3.0, 5.5, 2.5),
        MMA_16X64: Cost(7, 3.0, 6.5, 3.3),
    },
    ("16-bit", False): {
        MMA_32X64: Cost(4, 2.2, 25.9, 10.5),
        MMA_32X32: Cost(8, 2.3, 27.8, 8.5),
        MMA_16X64: Cost(6, 2.2, 28.8, 8.1),
    },
}
