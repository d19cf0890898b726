"""A backend whose kernels misbehave in every way that a kernel can, to prove that each costs its own cell only."""

from __future__ import annotations

import torch

from opwise.backends import BACKENDS
from opwise.backends.protocol import Probe


def install() -> None:
    """The `setup` of a worker: adds this backend to the list."""
    BACKENDS["faulty"] = "faulty"  # type: ignore[index]


def probe(device: torch.device) -> Probe:
    return Probe({}, stand_in="cpu" if device.type == "cpu" else None)
