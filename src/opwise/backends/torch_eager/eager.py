"""Builds of the eager variants: from a function with `out=`, or from an expression, which is copied into `out` or compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opwise.backends.protocol import Bind, Launch, Variant


def into(function: Callable[..., Any]) -> Callable[..., Bind]:
    """The build of a torch function that takes `out=`."""

    def build(*tensors: Tensor) -> Bind:
        def bind(*tensors: Tensor) -> Launch:
            *inputs, out = tensors

            def launch() -> None:
                function(*inputs, out=out)

            return launch

        return bind

    return build


def copied(function: Callable[..., Tensor]) -> Callable[..., Bind]:
    """The build of an expression that allocates its result. Its launch includes the copy into `out`."""

    def build(*tensors: Tensor) -> Bind:
        def bind(*tensors: Tensor) -> Launch:
            *inputs, out = tensors

            def launch() -> None:
                out.copy_(function(*inputs))

            return launch

        return bind

    return build


def expression(function: Callable[..., Tensor], summary: str, fault: str | None = None) -> Variant:
    return Variant(copied(function), summary, fault=fault, call=function, takes_strided=True)


def compiled(function: Callable[..., Tensor], summary: str) -> Variant:
    """torch.compile of the expression, into `out`. Each workload has its own function, with dynamic=False: after eight recompilations of
    one function torch would fall back to eager mode without an error."""

    def build(*tensors: Tensor) -> Bind:
        def body(*tensors: Tensor) -> None:
            *inputs, out = tensors
            out.copy_(function(*inputs))

        body_compiled = torch.compile(body, dynamic=False, fullgraph=True)
        torch._dynamo.reset_code_caches()
        *inputs, out = tensors
        with warnings.catch_warnings():  # inductor warns of intended choices, as of float32 without TF32
            warnings.simplefilter("ignore")
            body_compiled(*inputs, torch.empty_like(out))

        def bind(*tensors: Tensor) -> Launch:
            def launch() -> None:
                body_compiled(*tensors)

            return launch

        return bind

    return Variant(build, summary)
