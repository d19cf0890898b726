"""Tests whether a result is bitwise the same each time, and independent of the batch.

Repeatable: REPEATS launches, each into a poisoned output; then as many on two streams at once, where each binding has unused scratch
memory; and in a second process (runner/facts.py), by a fingerprint of the result. Batch-invariant: a row of the first input gives the same
row of the result alone and in batches of BATCHES rows, at each of their places (at PLACES of a large batch's)."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from opwise.backends import implementation
from opwise.backends.protocol import Implementation
from opwise.measure.validate import fingerprint
from opwise.ops import OPS
from opwise.ops.spec import OpSpec, Workload

REPEATS = 20
BATCHES = (7, 64, 4096)
PLACES = 16  # of a batch of more than 64 rows
MOST_BYTES = 1 << 30  # of a batch's input: rows of softmax may have 4 MiB
SEED = 2026
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Facts(NamedTuple):
    """None if not applicable, or not tested. differs: the first difference, or why there is no answer. bits: a digest of the result on the
    inputs of SEED."""

    repeatable: bool | None = None
    batch_invariant: bool | None = None
    differs: str = ""
    bits: str = ""


Turn = Callable[[str, str], None]
Cells = Sequence[tuple[str, str]]  # (implementation, workload)


def facts(turn: Turn, device_name: str, cells: Cells) -> dict[tuple[str, str], Facts]:
    """Facts of each cell; a worker's request ("apply"). If a cell does not build, or fails, its facts say why."""
    found = {}
    for name, text in cells:
        turn(name, "build")
        workload = Workload.parse(text)
        try:
            with workload.precision(), torch.no_grad():
                found[name, text] = of(implementation(name, torch.device(device_name)), workload, torch.device(device_name))
        except Exception as error:  # a broken kernel costs its own cell
            found[name, text] = Facts(differs=f"{type(error).__name__}: {error}")
    return found


def digests(turn: Turn, device_name: str, cells: Cells) -> dict[tuple[str, str], str]:
    """`Facts.bits` of each cell in another process, "" if it fails; a worker's request."""
    found, device = {}, torch.device(device_name)
    for name, text in cells:
        turn(name, "build")
        found[name, text] = ""
        workload = Workload.parse(text)
        with contextlib.suppress(Exception), workload.precision(), torch.no_grad():
            inputs = OPS[workload.op].make_inputs(workload, device, SEED)
            found[name, text] = digest(_once(implementation(name, device), inputs))
    return found


def of(found: Implementation, workload: Workload, device: torch.device) -> Facts:
    """Facts of one cell. Raises what the implementation raises."""
    inputs = found.op.make_inputs(workload, device, SEED)
    first = _once(found, inputs)
    why = repeats(found, inputs, first)
    bits = digest(first)
    del inputs, first
    if why:
        return Facts(False, None, why, bits)
    if not by_rows(found.op, workload):
        return Facts(True, None, "", bits)
    why = varies(found, workload, device)
    return Facts(True, not why, why, bits)


def repeats(found: Implementation, inputs: tuple[Tensor, ...], first: Tensor) -> str:
    """The first difference of a launch's result from the first one's; "" if none."""
    out = found.op.empty_output(*inputs)
    launch = found.prepare(*inputs, out=out)
    for n in range(2, REPEATS + 1):
        out.fill_(float("nan"))
        launch()
        if why := difference(out, first):
            return f"launch {n} of {REPEATS}: {why}"
    if out.device.type != "cuda":
        return ""
    torch.cuda.synchronize(out.device)
    streams = [torch.cuda.Stream(out.device) for _ in range(2)]  # type: ignore[no-untyped-call]
    outs = [out, torch.empty_like(out)]
    launches = []
    for stream, each in zip(streams, outs, strict=True):
        with torch.cuda.stream(stream):
            launches.append(found.prepare(*inputs, out=each))
    for _ in range(REPEATS):
        for stream, each, begin in zip(streams, outs, launches, strict=True):
            with torch.cuda.stream(stream):
                each.fill_(float("nan"))
                begin()
    torch.cuda.synchronize(out.device)
    told = [difference(each, first) for each in outs]
    return next((f"on two streams at once: {why}" for why in told if why), "")


def by_rows(spec: OpSpec, workload: Workload) -> bool:
    """Returns whether the result's row i depends only on the first input's row i, tested by the reference on a small input. False for
    elementwise ops, which have no batch."""
    if len(workload.shape) < 2 or workload.layout[:1] == "T" or _elementwise(spec, workload):
        return False
    small = replace(workload, shape=(3, *(min(n, 4) for n in workload.shape[1:])))
    x, *others = (t.double() for t in spec.make_inputs(small, torch.device("cpu"), 0))
    whole = spec.reference(x, *others)
    return whole.dim() > 0 and whole.shape[0] == 3 and torch.equal(spec.reference(x[1:2], *others), whole[1:2])


def _elementwise(spec: OpSpec, workload: Workload) -> bool:
    """Does each element of the result come from one element?"""
    small = replace(workload, shape=(2, 2, *workload.shape[2:]))
    x, *others = (t.double() for t in spec.make_inputs(small, torch.device("cpu"), 0))
    if others:
        return False
    whole = spec.reference(x)
    return whole.shape == x.shape and torch.equal(spec.reference(x[:, :1]), whole[:, :1])


def varies(found: Implementation, workload: Workload, device: torch.device) -> str:
    """The first difference of a row of the result between batches; "" if none."""
    most = max(1, min(max(BATCHES), MOST_BYTES // (workload.shape[1] * workload.torch_dtype.itemsize)))
    x, *others = found.op.make_inputs(replace(workload, shape=(most, *workload.shape[1:])), device, SEED)
    row = x[:1].clone()
    alone = _once(found, (row, *others))[0].clone()
    for rows in dict.fromkeys(min(m, x.shape[0]) for m in BATCHES):
        batch = x[:rows].clone()
        out = found.op.empty_output(batch, *others)
        launch = found.prepare(batch, *others, out=out)
        for place in range(rows) if rows <= 64 else sorted({i * (rows - 1) // (PLACES - 1) for i in range(PLACES)}):
            kept = batch[place].clone()
            batch[place] = row[0]
            out.fill_(float("nan"))
            launch()
            if why := difference(out[place], alone):
                return f"a row alone and at place {place} of {rows}: {why}"
            batch[place] = kept
    return ""


def difference(one: Tensor, other: Tensor) -> str:
    """The first element in which two tensors differ bitwise, "" if none."""
    a, b = (x.contiguous().view(-1).view(BITS[x.element_size()]) for x in (one, other))
    if torch.equal(a, b):
        return ""
    at = int((a != b).nonzero()[0])
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), one.shape)) if one.dim() else ()
    values = [x.contiguous().view(-1)[at].item() for x in (other, one)]
    return f"element {place} is {values[1]!r}, was {values[0]!r}; {int((a != b).sum())} of {a.numel()} differ"


def digest(x: Tensor) -> str:
    return hashlib.sha256(repr(fingerprint([x])).encode()).hexdigest()[:16]


def _once(found: Implementation, inputs: tuple[Tensor, ...]) -> Tensor:
    out = found.op.empty_output(*inputs).fill_(float("nan"))
    found.prepare(*inputs, out=out)()
    return out
