"""Single-GPU training notes: torch.compile as a backend, and two closing remarks without figures: micro-batches, and prefetch over PCIe.

Micro-batches: the gradients of a batch are the sums of those of its parts. Each part's activations are freed by its own backward pass, so
only one part's are in memory at a time. Prefetch: while the GPU computes on a batch, the next is copied from pinned memory on another
stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from opwise.measure.stats import median
from opwise.seeds.clocks import benchmark, told_us
from opwise.seeds.experiment import Findings
from opwise.seeds.place import Place

GONE = "nvfuser"  # the notes' `dynamo.optimize("nvfuser")`
PARTS, TRIALS = 8, 5
BATCHES = 16


def dynamo(place: Place) -> Findings:
    """torch.compile as a backend: one graph, no break, the same result. Without a GPU, only TorchDynamo's capture."""
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
        f"opwise runs torch.compile as the variant `compile` of every op; {asked_for(GONE)}",
        graphs == 1 and apart < 1e-4,
        figures={"graphs": graphs, "largest difference": apart, **({"first call, s": seconds} if place.gpu else {})},
    )


def asked_for(backend: str) -> str:
    """Returns whether this torch takes the backend."""
    from torch._dynamo.exc import InvalidBackend

    try:
        torch._dynamo.optimize(backend)
    except InvalidBackend:
        return f'dynamo.optimize("{backend}") is gone: torch {torch.__version__} has {", ".join(torch._dynamo.list_backends())}'
    return f'dynamo.optimize("{backend}") is taken'


def micro_batches(place: Place) -> Findings:
    """One backward pass of a batch, whole and in parts: compares gradients, memory and time."""
    rows, width = (8192, 4096) if place.gpu else (64, 64)
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).to(place.device)
    x = torch.randn(rows, width, device=place.device)
    gradients, held, seconds = {}, {}, {}
    for parts in (1, PARTS):
        held[parts] = most_held(model, lambda parts=parts: accumulated(model, x, parts))  # type: ignore[misc]
        gradients[parts] = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        seconds[parts] = median(benchmark(lambda parts=parts: accumulated(model, x, parts), 1, TRIALS, place.wait))  # type: ignore[misc]
    apart = max(float((a - b).norm() / a.norm()) for a, b in zip(gradients[1], gradients[PARTS], strict=True))
    less, slower = held[1] / held[PARTS], seconds[PARTS] / seconds[1]
    same = f"gradients alike within {apart:.1g} of their norm"
    figures = {"relative difference of the gradients": apart, "activations of the batch, MB": held[1] / 1e6,
               f"of {PARTS} parts, MB": held[PARTS] / 1e6}  # fmt: skip
    if place.gpu:
        figures |= {"step, whole, us": seconds[1] * 1e6, f"step, {PARTS} parts, us": seconds[PARTS] * 1e6}
    return Findings(
        f"{less:.1f} times less memory" + (f", {slower:.2f} of the time" if place.gpu else ""),
        f"{PARTS} parts of a batch of {rows}: {same}; {held[1] / 1e6:.4g} MB and {held[PARTS] / 1e6:.4g} MB saved for the backward pass",
        apart < 1e-3 and less > PARTS / 2,
        figures=figures,
    )


def accumulated(model: torch.nn.Module, x: Tensor, parts: int) -> None:
    """Accumulates in .grad the gradients of the mean of the squares of the output over the whole batch."""
    model.zero_grad(set_to_none=True)
    for part in x.chunk(parts):
        (model(part).square().mean() * (len(part) / len(x))).backward()


def most_held(model: torch.nn.Module, run: Callable[[], object]) -> int:
    """The most bytes that autograd holds for the backward pass, without parameters and inputs; counted, so it works on a CPU too."""
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    alive: dict[int, int] = {}
    most = 0

    class Held:
        def __init__(self, tensor: Tensor) -> None:
            nonlocal most
            self.tensor = tensor
            if tensor.grad_fn is not None and tensor.untyped_storage().data_ptr() not in parameters:
                alive[id(self)] = tensor.numel() * tensor.element_size()
                most = max(most, sum(alive.values()))

        def __del__(self) -> None:
            alive.pop(id(self), None)

    with torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.tensor):
        run()
    return most


def prefetch(place: Place) -> Findings:
    """Batches from the CPU's memory: copied in turn, from pinned memory in turn, and from pinned memory one batch ahead."""
    rows, width = 8192, 2048
    weight = torch.randn(width, width, device=place.device)
    pageable = [torch.randn(rows, width) for _ in range(BATCHES)]
    pinned = [x.pin_memory() for x in pageable]
    results: dict[str, Tensor] = {}

    def run(name: str, batches: Callable[[], Iterator[Tensor]]) -> None:
        results[name] = torch.stack([(x @ weight).relu().sum() for x in batches()])

    ways: dict[str, Callable[[], Iterator[Tensor]]] = {
        "pageable": lambda: (x.to(place.device) for x in pageable),
        "pinned": lambda: (x.to(place.device, non_blocking=True) for x in pinned),
        "prefetched": lambda: one_ahead(place, pinned),
    }
    seconds = {name: median(benchmark(lambda name=name, way=way: run(name, way), 2, TRIALS, place.wait)) for name, way in ways.items()}  # type: ignore[misc]
    same = all(torch.equal(results["pageable"], other) for other in results.values())
    gain = seconds["pinned"] / seconds["prefetched"]
    return Findings(
        ", ".join(f"{name} {told_us(s / BATCHES * 1e6)}" for name, s in seconds.items()),
        f"a batch of {rows}x{width} float32, copied and multiplied: prefetched {gain:.2f} times as fast as pinned in turn"
        + ("" if same else "; results differ"),
        same and gain > 1,
        figures={f"{name}, a batch, us": s / BATCHES * 1e6 for name, s in seconds.items()},
    )


def one_ahead(place: Place, pinned: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yields batches on the GPU; the copy of each starts on another stream before the previous one is yielded."""
    copies, computes = torch.cuda.Stream(place.device), torch.cuda.current_stream(place.device)  # type: ignore[no-untyped-call]

    def begun(x: Tensor) -> tuple[Tensor, torch.cuda.Event]:
        with torch.cuda.stream(copies):
            there, done = x.to(place.device, non_blocking=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(copies)
        return there, done

    waiting = begun(pinned[0])
    for following in (*pinned[1:], None):
        there, done = waiting
        if following is not None:
            waiting = begun(following)
        computes.wait_event(done)
        there.record_stream(computes)  # else its memory is given to a later copy while the product still reads it
        yield there
