"""The call that a dispatcher uses for a new workload, from the stored runs, which are read once per process. Never measures."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from opwise import clocks, library
from opwise.backends import implementation
from opwise.backends.protocol import BackendUnavailable, UnsupportedWorkload
from opwise.choosing.asked import NothingMeasured, here
from opwise.choosing.gradients import AUTOGRAD_US, FUNCTIONS
from opwise.choosing.query import OWN, choose_from
from opwise.choosing.ranking import BASELINE, Choice
from opwise.choosing.store import Figures, Gpu, Store
from opwise.choosing.table import VARIABLE, read_table
from opwise.measure.stats import TIE
from opwise.ops import OPS
from opwise.ops.spec import Workload, elements
from opwise.record import Record

if TYPE_CHECKING:
    from opwise.choosing.dispatch import Call, Dispatcher

# What a look-up adds to a call of torch eager's. A recorded call of any other backend has one of its own, which the dispatcher's replaces.
LOOK_UP_US = 1.0
_told: set[str] = set()


class StaleFigures(UserWarning):
    """A choice rests on figures of another driver, library version, kernel or GPU than those here."""


class Fallback(UserWarning):
    """Torch eager, or the next best backend, computes because nothing is measured or the chosen backend is missing."""


def selected(dispatcher: Dispatcher, inputs: Sequence[Tensor], gradient: bool = False) -> tuple[Call, bool]:
    """(call, whether it may be kept) for such tensors, which are plain and do not require grad. gradient: wraps a backend's call in an
    autograd Function."""
    eager = _eager(dispatcher, inputs)
    if inputs[0].ndim == 0:  # no figure is of one, and its key would be known under torch.jit.trace too (dispatch.py)
        return eager, True
    if not all(x.is_contiguous() for x in inputs) and not (dispatcher.op == "matmul" and OPS["matmul"].layout(*inputs)):
        return dispatcher.left, True
    if (flat := _flat(dispatcher.op, inputs)) is not None:
        call, keep = selected(dispatcher, flat, gradient)
        return (eager if call is _eager(dispatcher, flat) else _viewed(call, flat, inputs)), keep
    if not _for_kernels(dispatcher.op, inputs):
        return eager, True
    if torch.cuda.is_current_stream_capturing():  # a kernel's first call may compile, load and allocate, which a capture forbids
        return eager, False
    if backend := _by_table(dispatcher.op, inputs):
        call = eager if backend == BASELINE else _built(dispatcher.op, backend, inputs) or eager
    else:
        choice = _choice(dispatcher, inputs)
        call = _first_that_works(dispatcher, choice, inputs, eager, AUTOGRAD_US if gradient else 0.0) if choice else eager
    return (partial(FUNCTIONS[dispatcher.op].apply, call) if gradient and call is not eager else call), True


def _eager(dispatcher: Dispatcher, inputs: Sequence[Tensor]) -> Call:
    if dispatcher.op == "matmul" and all(x.ndim == 2 for x in inputs):
        return torch.mm  # what torch.matmul comes to after looking at the shapes
    return dispatcher.eager


def _flat(op: str, inputs: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
    """Views in two dimensions of what has others: softmax's rows, and a left factor of many matrices, which one right factor follows. None
    where there is nothing to view."""
    x = inputs[0]
    rows_of = op == "softmax" or (op == "matmul" and inputs[1].ndim == 2)
    if not rows_of or x.ndim in (0, 2) or x.numel() == 0 or (op == "matmul" and x.ndim == 1):
        return None
    return x.view(-1, x.shape[-1]), *inputs[1:]


def _viewed(call: Call, flat: Sequence[Tensor], inputs: Sequence[Tensor]) -> Call:
    """The call of two dimensions, for inputs like these."""
    shape = (*inputs[0].shape[:-1], inputs[-1].shape[-1])
    rows = flat[0].shape

    def viewed(x: Tensor, *others: Tensor) -> Tensor:
        return call(x.view(rows), *others).view(shape)

    return viewed


def _for_kernels(op: str, inputs: Sequence[Tensor]) -> bool:
    """Are these CUDA tensors of one device and a dtype and shape that the op's kernels take, with something in them?"""
    first = inputs[0]
    if not first.is_cuda or any(x.device != first.device or x.numel() == 0 for x in inputs):
        return False
    try:
        OPS[op].check_inputs(*(x.detach() for x in inputs))
    except (TypeError, ValueError):  # torch eager takes more, or says in its own words why not
        return False
    return True


def _by_table(op: str, inputs: Sequence[Tensor]) -> str:
    """The backend that the table of OPWISE_CHOICES names for these inputs, "" where it does not. Raises BadTable and OSError: who names a
    table wants it."""
    device, choices = table()
    backend = choices.get(str(OPS[op].workload_of(*inputs)), "") if choices else ""
    if backend and (found := here(str(inputs[0].device)).device) != device:
        tell("another GPU", f"{VARIABLE} is a table of {device}, and this is {found}: the stored figures choose", Fallback)
        return ""
    return backend


@cache
def table() -> tuple[str, Mapping[str, str]]:
    """(the GPU, workload -> backend) of OPWISE_CHOICES, read once."""
    path = os.environ.get(VARIABLE)
    return read_table(Path(path)) if path else ("", {})


def _choice(dispatcher: Dispatcher, inputs: Sequence[Tensor]) -> Choice | None:
    store, gpu = recorded(), here(str(inputs[0].device))
    try:
        choice = choose_from(store, OPS[dispatcher.op].workload_of(*inputs), gpu)
    except NothingMeasured as nothing:
        tell("nothing measured", f"torch eager computes: {nothing}", Fallback)
        return None
    if not dispatcher.sized:
        up_to, dispatcher.columns = eager_up_to(store, dispatcher.op, _gpus())
        dispatcher.small, dispatcher.sized = up_to, True
    if choice.chosen.basis == "predicted":
        tell("predicted", f"opwise.{dispatcher.op} is dispatched by another GPU's figures: {choice.refresh} takes this one's", StaleFigures)
    elif choice.refresh:
        reason = next(s.stale for s in choice.ranking if s.stale)
        tell("stale", f"opwise.{dispatcher.op} is dispatched by stale figures ({reason}): {choice.refresh} refreshes these", StaleFigures)
    return choice


def invariant(workload: str, device: str) -> str:
    """The implementation for a batch-invariant op. Workloads that differ only in their first size get the same one, since otherwise a row's
    bits would depend on the batch. It was found batch-invariant at each of them that was tested, and has the least geometric mean of its
    time over the fastest's. Raises NothingMeasured."""
    asked, store, gpu = Workload.parse(workload), recorded(), here(device)
    sizes = OPS[asked.op].sizes
    found = store.figures(asked.op, asked.dtype, gpu, asked.layout, invariant=True).timed.values()
    shapes = {r.shape for cells in found for r in cells.values() if (r.bits or r.differs) and sizes(r.shape)[1:] == sizes(asked.shape)[1:]}
    rankings = [choose_from(store, replace(asked, shape=shape), gpu, invariant=True) for shape in sorted(shapes) or [asked.shape]]
    over = [{s.backend: s.counts / each.chosen.counts for s in each.ranking} for each in rankings]
    every = set.intersection(*map(set, over))
    if not every:
        at = ", ".join(str(each.workload) for each in rankings)
        raise NothingMeasured(
            f"no implementation of {asked.op} is known to be batch-invariant at all of {at}: opwise run … --facts finds out"
        )
    backend, _, variant = min(every, key=lambda name: (geometric_mean(each[name] for each in over), name)).partition(":")
    return f"{backend}/{asked.op}{f':{variant}' if variant else ''}"


def _first_that_works(dispatcher: Dispatcher, choice: Choice, inputs: Sequence[Tensor], eager: Call, more_us: float) -> Call:
    """The best backend that builds, whose call costs so much more than is on record. Torch eager where it is within 1 % of it, what it
    costs to get there included."""
    by_eager = next((max(s.kernel_us, s.call_us + LOOK_UP_US) for s in choice.ranking if s.backend == BASELINE), float("inf"))
    for standing in choice.ranking:
        if by_eager < max(standing.us, standing.call_us + more_us) * (1.0 + TIE):
            return eager
        if standing.backend == BASELINE:
            continue
        if found := _built(dispatcher.op, standing.backend, inputs):
            return found
    return eager


def _built(op: str, backend: str, inputs: Sequence[Tensor]) -> Call | None:
    """None where the backend does not take these inputs, or, with a warning, where it cannot be used."""
    try:
        found = implementation(f"{backend}/{op}", inputs[0].device).call_like(*inputs)
        found(*inputs)  # compiles and loads now: a later call may be captured
    except UnsupportedWorkload:
        return None
    except torch.OutOfMemoryError:
        raise
    except BackendUnavailable as missing:
        tell(backend, f"{backend} would be faster for {op}, but: {missing}", Fallback)
    except Exception as problem:  # whatever ails this backend, the next one or torch eager computes; a broken GPU shows there
        tell(backend, f"{backend}/{op} cannot be used: {type(problem).__name__}: {problem}", Fallback)
    else:
        return found
    return None


def eager_up_to(store: Store, op: str, gpus: Sequence[Gpu]) -> tuple[int, int]:
    """(elements, columns): on each of the GPUs, torch eager wins every recorded workload of at most that many elements in a busy stream,
    and none of them has longer rows. A product counts as its largest matrix. (-1, 0) if there is no such size."""
    least = (-1, 0)
    for n, gpu in enumerate(gpus):
        points = [p for dtype in OPS[op].dtypes for p in _verdicts(store.figures(op, dtype, gpu))]
        first_lost = min((size for size, _, won in points if not won), default=float("inf"))
        below = [(size, last) for size, last, _ in points if size < first_lost]
        if not below:
            return -1, 0
        found = max(size for size, _ in below), max(last for _, last in below)
        least = found if n == 0 else (min(least[0], found[0]), min(least[1], found[1]))
    return least


def _verdicts(found: Figures) -> list[tuple[int, int, bool]]:
    """(elements of the largest tensor, columns, is it torch eager's?) of each workload on record."""
    verdicts = []
    for sizes, record in found.timed.get(BASELINE, {}).items():
        others = [cells[sizes] for backend, cells in found.timed.items() if backend != BASELINE and sizes in cells]
        states = clocks.common([record, *others])
        won = not others or stream_us(record, states) < min(stream_us(r, states) for r in others) * (1.0 + TIE)
        largest = elements(tuple(sorted(sizes)[-2:]))  # of a product's three matrices, that with the two longest sides
        verdicts.append((largest, sizes[-1], won))
    return verdicts


def stream_us(record: Record, states: Sequence[str]) -> float:
    assert record.call_us is not None  # of all that a store calls timed
    return max(clocks.kernel(record, states)[0], record.call_us.median)


@cache
def recorded() -> Store:
    """The user's runs (./results) and those that ship with opwise, read once."""
    return Store.load(library.stored(OWN))


@cache
def _gpus() -> tuple[Gpu, ...]:
    return tuple(here(f"cuda:{n}") for n in range(torch.cuda.device_count()))


def tell(what: str, message: str, category: type[UserWarning]) -> None:
    """Warns once per process for each `what`."""
    if what not in _told:
        _told.add(what)
        warnings.warn(message, category, stacklevel=2)


def forget() -> None:
    """Resets the module: stored runs are read again, warnings are repeated."""
    from opwise.choosing.dispatch import DISPATCHERS

    recorded.cache_clear()
    table.cache_clear()
    _told.clear()
    for dispatcher in DISPATCHERS.values():
        dispatcher.forget()
