"""Device memory that a launch needs beyond its inputs and output."""

from __future__ import annotations

import torch


class MemoryMeter:
    """`with MemoryMeter(device) as meter:` around the code to measure; then `meter.bytes`: the most that torch's allocator held above its
    level before, None without a GPU. Memory from outside torch's allocator does not show; tests watch for that."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes: int | None = None
        self._before = 0

    def __enter__(self) -> MemoryMeter:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch._C._cuda_clearCublasWorkspaces()  # cuBLAS keeps one between calls, which would hide whose it is
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device)
        return self

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self.bytes = torch.cuda.max_memory_allocated(self.device) - self._before
