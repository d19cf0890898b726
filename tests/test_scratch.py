"""Scratch is zero before its first use on whatever stream that is; a launch on the stream that wrote the zeros is not held up."""

from __future__ import annotations

import pytest
import torch

from opwise.backends.scratch import launched_in_order, zeroed


def test_only_a_launch_on_another_stream_is_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = {0: 7, 1: 8}
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: streams[index], raising=False)
    seen: list[object] = []
    launch = launched_in_order(lambda: seen.append("launch"), torch.device("cuda", 1), lambda stream: seen.append(stream))
    launch()
    streams[0] = 99  # another device's stream is not this launch's affair
    launch()
    assert seen == ["launch", "launch"]
    streams[1] = 9
    launch()
    assert seen[2:] == [9, "launch"]


def test_scratch_is_zero_and_as_large_as_asked() -> None:
    memory, order = zeroed(16 + 4 * 5, torch.device("cpu"))
    assert memory.nbytes == 36
    assert not memory.any()
    order(0)
