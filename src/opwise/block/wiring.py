"""A transformer's block as steps on fixed buffers, in the order in which they run. All bfloat16, T tokens, H hidden, F ff:

    norm 1      normed = x / rms(x)                                          torch
    qkv         qkv = normed Wqkv              (T, H) x (H, 3H)              matmul
    scores      scores = q k' / sqrt(head)     batched over heads            torch
    softmax     attention = softmax(scores)    (sequences heads length, length)   softmax
    values      attended = attention v         batched over heads            torch
    out         projected = attended Wo        (T, H) x (H, H)               matmul
    residual 1  middle = x + projected                                       torch
    norm 2      normed_2 = middle / rms(middle)                              torch
    up          up = normed_2 W1               (T, H) x (H, F)               matmul
    gelu        active = gelu(up)              (T, F)                        gelu
    down        down = active W2               (T, F) x (F, H)               matmul
    residual 2  y = middle + down                                            torch

All candidates work on one set of buffers: the same addresses, so that none has luckier ones. Where the op rmsnorm is installed
(plugins/opwise-rmsnorm) a candidate's own kernels compute the norms, with weights of 1; torch's stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from opwise.block.sizes import DTYPE, Sizes
from opwise.ops import OPS
from opwise.ops.spec import DTYPES, normal

Launch = Callable[[], None]
Bind = Callable[["Step", tuple[Tensor, ...], Tensor], Launch | None]


@dataclass(frozen=True)
class Step:
    """One op of the suite in the block: its input buffers and its output buffer."""

    name: str
    op: str
    inputs: tuple[str, ...]
    output: str


STEPS: Mapping[str, Step] = {
    step.name: step
    for step in (
        Step("qkv", "matmul", ("normed", "Wqkv"), "qkv"),
        Step("softmax", "softmax", ("scores",), "attention"),
        Step("out", "matmul", ("attended", "Wo"), "projected"),
        Step("up", "matmul", ("normed_2", "W1"), "up"),
        Step("gelu", "gelu", ("up",), "active"),
        Step("down", "matmul", ("active", "W2"), "down"),
    )
}
NORMS: Mapping[str, Step] = {
    step.name: step
    for step in (Step("norm 1", "rmsnorm", ("x", "ones"), "normed"), Step("norm 2", "rmsnorm", ("middle", "ones"), "normed_2"))
    if step.op in OPS
}
SWAPPED: Mapping[str, Step] = {**STEPS, **NORMS}
ORDER = ("norm 1", "qkv", "scores", "softmax", "values", "out", "residual 1", "norm 2", "up", "gelu", "down", "residual 2")
OPS_INSIDE = tuple(dict.fromkeys(step.op for step in SWAPPED.values()))


@dataclass(frozen=True)
class Tensors:
    """`given`: x and the weights, which no step may write. `made`: what the steps write, y last."""

    given: Mapping[str, Tensor]
    made: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.given[name] if name in self.given else self.made[name]

    @classmethod
    def of(cls, sizes: Sizes, device: torch.device, seed: int) -> Tensors:
        """x ~ N(0, 1); weights ~ N(0, 1/fan-in), so that no buffer grows or fades from step to step."""
        t, h, f, dtype = sizes.tokens, sizes.hidden, sizes.ff, DTYPES[DTYPE]
        given = {"x": normal((t, h), dtype, device, seed)}
        for i, (name, k, n) in enumerate((("Wqkv", h, 3 * h), ("Wo", h, h), ("W1", h, f), ("W2", f, h)), start=1):
            given[name] = (normal((k, n), torch.float32, device, seed + i) / math.sqrt(k)).to(dtype)
        if NORMS:
            given["ones"] = torch.ones(h, dtype=dtype, device=device)
        scores = sizes.workloads["softmax"].shape
        shapes = {"normed": (t, h), "qkv": (t, 3 * h), "scores": scores, "attention": scores, "attended": (t, h), "projected": (t, h),
                  "middle": (t, h), "normed_2": (t, h), "up": (t, f), "active": (t, f), "down": (t, h), "y": (t, h)}  # fmt: skip
        made = {name: torch.empty(shape, dtype=dtype, device=device) for name, shape in shapes.items()}
        return cls(given, {"rms": torch.empty((t, 1), dtype=torch.float32, device=device)} | made)

    def poison(self) -> None:
        """Fills `made` with nan on the current stream, so that skipped elements and steps that never ran show in y."""
        for tensor in self.made.values():
            tensor.fill_(math.nan)


def wired(sizes: Sizes, tensors: Tensors, bind: Bind) -> dict[str, Launch]:
    """The launches of a block by step, in order. `bind(step, inputs, out)` returns the launch of one of the suite's ops, None for a norm
    left to torch. torch computes the other steps, each into its buffer without an allocation."""
    t = tensors
    bound = {s.name: bind(s, tuple(t[name] for name in s.inputs), t[s.output]) for s in SWAPPED.values()}
    launches = _by_torch(sizes, t) | {name: launch for name, launch in bound.items() if launch is not None}
    return {name: launches[name] for name in ORDER}


def _by_torch(sizes: Sizes, t: Tensors) -> dict[str, Launch]:
    return {
        "norm 1": _norm(t["x"], t["rms"], t["normed"]),
        "scores": _scores(sizes, t),
        "values": _values(sizes, t),
        "residual 1": _sum(t["x"], t["projected"], t["middle"]),
        "norm 2": _norm(t["middle"], t["rms"], t["normed_2"]),
        "residual 2": _sum(t["middle"], t["down"], t["y"]),
    }


def _norm(x: Tensor, rms: Tensor, out: Tensor) -> Launch:
    """x over its rows' root mean square; a gain would be folded into the weights. By hand, since torch's own allocates its result."""

    def launch() -> None:
        torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32, out=rms)
        rms.mul_(x.shape[-1] ** -0.5)
        torch.div(x, rms, out=out)

    return launch


def _sum(a: Tensor, b: Tensor, out: Tensor) -> Launch:
    def launch() -> None:
        torch.add(a, b, out=out)

    return launch


def _scores(sizes: Sizes, t: Tensors) -> Launch:
    """One batched product a sequence: its heads are views of qkv's columns, and nothing is copied."""
    triples = [(s.q, s.k.transpose(1, 2), s.scores) for s in sequences(sizes, t)]

    def launch() -> None:
        for q, k, out in triples:
            torch.baddbmm(out, q, k, beta=0, alpha=sizes.scale, out=out)

    return launch


def _values(sizes: Sizes, t: Tensors) -> Launch:
    triples = [(s.attention, s.v, s.attended) for s in sequences(sizes, t)]

    def launch() -> None:
        for attention, v, out in triples:
            torch.bmm(attention, v, out=out)

    return launch


class Sequence(NamedTuple):
    """Views of one sequence by heads: q, k, v and attended (heads, length, head), scores and attention (heads, length, length)."""

    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    attention: Tensor
    attended: Tensor


def sequences(sizes: Sizes, t: Tensors) -> Iterator[Sequence]:
    """The sequences of a block, each on its rows of the buffers."""
    length, heads = sizes.length, sizes.heads
    columns = (*torch.split(t["qkv"], sizes.hidden, dim=1), t["attended"])
    by_rows = ([x.view(length, heads, sizes.head).transpose(0, 1) for x in torch.split(of, length)] for of in columns)
    squares = (t[name].view(sizes.sequences, heads, length, length) for name in ("scores", "attention"))
    for q, k, v, attended, scores, attention in zip(*by_rows, *squares, strict=True):
        yield Sequence(q, k, v, scores, attention, attended)
