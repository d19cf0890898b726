"""Scratch memory of a launch: zero before its first use, on whatever stream that is."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from opwise.backends.protocol import Launch


def zeroed(size: int, device: torch.device) -> tuple[Tensor, Callable[[int], None]]:
    """`size` bytes of zeros, and what must be called with the raw stream of a launch where that is not the stream current now.

    The zeros are written on the stream that is current now, without waiting for them. A launch on that stream comes after them by itself;
    another stream is made to wait for them, once. A stream under capture cannot wait for outside work, and need not: whoever begins a
    capture has waited for what the graph reads.
    """
    memory = torch.zeros(size // 4, dtype=torch.float32, device=device)
    if device.type != "cuda":  # a stand-in, where everything happens at once
        return memory, lambda stream: None
    home = torch.cuda.current_stream(device)
    ordered: set[int] = {home.cuda_stream}

    def order(stream: int) -> None:
        if stream in ordered or torch.cuda.is_current_stream_capturing():
            return
        torch.cuda.current_stream(device).wait_stream(home)
        ordered.add(stream)

    return memory, order


def launched_in_order(launch: Launch, device: torch.device, order: Callable[[int], None]) -> Launch:
    """`launch`, after `order` where it goes to another stream than the one that is current now, on which the zeros are written."""
    index: int = torch.cuda.current_device() if device.index is None else device.index
    stream_of = torch._C._cuda_getCurrentRawStream
    home = stream_of(index)

    def launch_in_order() -> None:
        stream = stream_of(index)
        if stream != home:
            order(stream)
        launch()

    return launch_in_order
