"""Data sheets of the GPUs of the published figures, to compare figures relative to their limits.

A data sheet's limit is theoretical; measured ones (measure/limits.py) are 85 to 95 % of it, so a ratio of the two is too small by that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opwise.ops.spec import Cost


@dataclass(frozen=True)
class Gpu:
    """A data sheet: memory bytes per second, and flops per second of each unit (ops.spec.Cost), dense."""

    name: str
    bytes_per_s: float
    peaks: Mapping[str, float]
    source: str

    def limit_us(self, work: Cost) -> float:
        """The least time for the work, us. Raises KeyError for a unit that is not on the data sheet."""
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
