"""Eager PyTorch, the baseline: one operator call after the other. CPU tensors are computed on the CPU."""

from __future__ import annotations

import torch

from opwise.backends.protocol import BackendUnavailable, Probe


def probe(device: torch.device) -> Probe:
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable("torch sees no GPU", "install a CUDA build of torch and a driver that fits it")
    return Probe({"torch": torch.__version__}, stand_in="cpu" if device.type == "cpu" else None)
