"""More tiles of fma and mma_sync, for skinny and tiny products only. With OPWISE_EXTRA=off they are not offered."""

from __future__ import annotations

from opwise.backends.numba_cuda.matmul.configurations import FmaTile, MmaTile

# 16 rows: few rows and a large B, which is read once. 64x32: few columns. 32x32: few elements of C.
FMA_16X128, FMA_16X64 = FmaTile(16, 128, 8, 4, stages=6, resident=4), FmaTile(16, 64, 4, 4, stages=6, resident=7)
FMA_64X32, FMA_32X32 = FmaTile(64, 32, 8, 4, stages=6, resident=5), FmaTile(32, 32, 4, 4, stages=6, resident=8)
MMA_16X64, MMA_32X64, MMA_32X32 = MmaTile(16, 64, 1, 2, 6, 6), MmaTile(32, 64, 2, 2, 4, 5), MmaTile(32, 32, 1, 2, 6, 8)
TILES = (FMA_16X128, FMA_16X64, FMA_64X32, FMA_32X32, MMA_16X64, MMA_32X64, MMA_32X32)
