"""Single-GPU training notes: torch.compile as a backend. What they name without showing it (flash attention, micro-batches, prefetch over
PCIe) has no figure to put anything beside."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opwise.seeds.experiment import Findings
from opwise.seeds.place import Place


def dynamo(place: Place) -> Findings:
    """torch.compile as a backend: one graph, no break, the same result. Without a GPU, TorchDynamo's capture alone."""
    torch._dynamo.reset()
    graphs = 0

    def counting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        if place.gpu:
            found: Callable[..., Any] = torch._dynamo.lookup_backend("inductor")(graph, inputs)
            return found
        return graph.forward

    def body(a: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.gelu(a @ b, approximate="tanh")

    a, b = (torch.randn(128, 128, device=place.device) for _ in range(2))
    began = time.perf_counter()
    out = torch.compile(body, backend=counting, fullgraph=True)(a, b)
    place.wait()
    seconds = time.perf_counter() - began
    torch._dynamo.reset()
    apart = float((out - body(a, b)).abs().max())
    return Findings(
        f"{graphs} graph" + ("s" if graphs != 1 else ""),
        f"{'compiled by inductor' if place.gpu else 'captured by TorchDynamo'} in one piece, largest difference to eager {apart:.2g}; "
        "opwise runs torch.compile as the variant `compile` of every op",
        graphs == 1 and apart < 1e-4,
        figures={"graphs": graphs, "largest difference": apart, **({"first call, s": seconds} if place.gpu else {})},
    )
