"""square, right in one variant and broken in the others."""

from __future__ import annotations

import os
import signal

import torch
from torch import Tensor

from opwise.backends.protocol import Bind, Launch, Variant


def _does(deed) -> Variant:  # type: ignore[no-untyped-def]
    def build(x: Tensor, out: Tensor) -> Bind:
        def bind(x: Tensor, out: Tensor) -> Launch:
            def launch() -> None:
                deed()
                torch.mul(x, x, out=out)

            return launch

        return bind

    return Variant(build, "")


def _raises() -> None:
    raise RuntimeError("boom [bold]not markup[/]")


def _illegal_address() -> None:
    """On a GPU: a kernel that writes far outside any allocation, which poisons the whole context."""
    if torch.cuda.is_available():
        index = torch.full((1,), 1 << 40, device="cuda")
        torch.zeros(1, device="cuda").index_fill_(0, index, 1.0)
    else:
        os.abort()


VARIANTS = {
    "": _does(lambda: None),
    "abort": _does(os.abort),
    "exit": _does(lambda: os._exit(7)),
    "killed": _does(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "raises": _does(_raises),
    "illegal": _does(_illegal_address),
}
