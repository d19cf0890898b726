"""The GPUs of the published figures, by their data sheets: what a figure is to be held against before it is compared with one from here.

A data sheet's limit is a promise, ours are measured (measure/limits.py), 85 to 95 % of it: a ratio of the two is that much too small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opwise.ops.spec import Cost


@dataclass(frozen=True)
class Gpu:
    """A data sheet: bytes a second of memory, and flops a second of each unit (ops.spec.Cost), dense, without sparsity."""

    name: str
    bytes_per_s: float
    peaks: Mapping[str, float]
    source: str

    def limit_us(self, work: Cost) -> float:
        """The least time for the work. Raises KeyError for a unit that the data sheet says nothing of."""
        return max(work.bytes / self.bytes_per_s, work.flops / self.peaks[work.unit]) * 1e6


GPUS: Mapping[str, Gpu] = {
    "T4": Gpu("T4", 320e9, {"fma": 8.1e12, "tensor_float16": 65e12}, "NVIDIA T4 Tensor Core GPU data sheet"),
    "A100": Gpu(
        "A100 40 GB", 1555e9, {"fma": 19.5e12, "tensor_float16": 312e12}, "NVIDIA A100 Tensor Core GPU data sheet, SXM 40 GB"
    ),  # the article is of 2021 and does not say which; the 80 GB one has 2039 GB/s
    "H100": Gpu(
        "H100 SXM", 3350e9, {"fma": 67e12, "tensor_float16": 989.4e12}, "NVIDIA H100 Tensor Core GPU data sheet, SXM, without sparsity"
    ),  # the notes do not say which; the PCIe card has 2000 GB/s
}
