"""An op under torch.compile between a pointwise producer and consumer. Inductor fuses them with torch's op and cannot fuse them with an
opaque operator. `opwise choose --for compile` times both on this machine's GPU.

Fusion saves a write and a read of each tensor in between; the operator saves the time by which its kernel is faster. The balance depends on
op, shape and GPU, so it is measured and not predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from opwise.choosing import dispatch
from opwise.measure.device import Monitor
from opwise.measure.stats import TIE
from opwise.measure.timing import Clock, paired_ratio, tied
from opwise.ops import OPS
from opwise.ops.spec import Workload

Op = Callable[..., Tensor]


class Chain(NamedTuple):
    """`run(op, *inputs, y)` computes `text`; y has the first input's shape or, with `per_column`, is a row as long as the output's."""

    text: str
    run: Callable[..., Tensor]
    per_column: bool = False


CHAINS: Mapping[str, Chain] = {
    **{op: Chain(f"{op}(x + y) * y", lambda op, x, y: op(x + y) * y) for op in ("square", "gelu", "softmax")},
    "mean": Chain("mean(x * y) * 2", lambda op, x, y: op(x * y) * 2),
    "matmul": Chain("relu(a @ b + y)", lambda op, a, b, y: torch.relu(op(a, b) + y), per_column=True),
}
FUSED, OPERATOR, APART, EAGER = WAYS = "compiled, torch's op", "compiled, opwise's operator", "opwise's function", "torch eager"
COMPILED = (FUSED, OPERATOR)


class Timed(NamedTuple):
    """us from a cold L2 at full clock with its 95 % interval; `ratio` to the fastest way, `tied` with it. error: relative to the chain in
    float64, in the Frobenius norm."""

    us: float
    low: float
    high: float
    ratio: float
    tied: bool
    error: float


def ways(workload: Workload) -> dict[str, Op]:
    """The ways to compute the chain, as functions of its inputs; none is compiled yet."""
    op, chain = workload.op, CHAINS[workload.op]
    by = {FUSED: dispatch.DISPATCHERS[op].eager, EAGER: dispatch.DISPATCHERS[op].eager}
    by |= dict.fromkeys((OPERATOR, APART), getattr(dispatch, op))

    def of(function: Op) -> Op:
        return lambda *inputs: chain.run(function, *inputs)

    return {way: torch.compile(of(by[way]), dynamic=False) if way in COMPILED else of(by[way]) for way in WAYS}


def inputs_of(workload: Workload, device: torch.device) -> tuple[Tensor, ...]:
    inputs = OPS[workload.op].make_inputs(workload, device, 0)
    like = inputs[0].new_empty(inputs[-1].shape[-1]) if CHAINS[workload.op].per_column else inputs[0]
    generator = torch.Generator(device).manual_seed(1)
    return *inputs, torch.randn(like.shape, dtype=like.dtype, device=device, generator=generator)


def timed(turn: Callable[[str, str], None], device_name: str, text: str, clock: Clock | None = None) -> dict[str, Timed]:
    """Times by way. A worker's request ("apply"). Raises RuntimeError if a way does not run."""
    device, workload = torch.device(device_name), Workload.parse(text)
    clock = clock or Clock(device, Monitor(device))
    with workload.precision(), torch.no_grad():
        inputs = inputs_of(workload, device)
        truth = CHAINS[workload.op].run(dispatch.DISPATCHERS[workload.op].eager, *(x.double() for x in inputs))
        launches, errors = {}, {}
        for way, function in ways(workload).items():
            turn(way, "build")
            errors[way] = float((function(*inputs).double() - truth).norm() / truth.norm())
            launches[way] = [lambda function=function: function(*inputs)]
        found = clock.cold(launches, lambda way: turn(way, "cold"))
    if missing := [f"{way}: {clock.refusals.get(way, 'no time')}" for way in WAYS if way not in found]:
        raise RuntimeError("; ".join(missing))
    best = min(found, key=lambda way: found[way].median_us)
    ratios = {way: paired_ratio(found[way], found[best]) for way in WAYS}
    return {
        way: Timed(t.median_us, t.low_us, t.high_us, ratios[way][0], way == best or tied(*ratios[way]), errors[way])
        for way, t in found.items()
    }


def sentence(found: Mapping[str, Timed], text: str) -> str:
    """States which of the two compiled ways is faster; a lead of less than 1 % is a tie."""
    fused, operator = (found[way] for way in COMPILED)
    if fused.us / operator.us < 1.0 + TIE:
        said = (f"Choosing nothing wins: compiled with torch's own op, {text} takes {fused.us:.4g} us, with opwise's operator in it "
                f"{operator.us:.4g}.")  # fmt: skip
    else:
        said = (f"The operator wins: with it, {text} takes {operator.us:.4g} us compiled, with torch's own op {fused.us:.4g}, "
                f"{fused.us / operator.us:.2f} times as long.")  # fmt: skip
    quickest = min(found, key=lambda way: found[way].us)
    return said if quickest in COMPILED else f"{said} Not compiled it is quicker: {quickest}, {found[quickest].us:.4g} us."
