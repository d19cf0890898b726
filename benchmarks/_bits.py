"""Are results bitwise the same each time, and in any batch? As `opwise run --facts` finds it out, of the commit's kernels, on this
machine's GPU. Nothing is carried over."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks._order import Order, counting
from benchmarks._timed import there

Cells = dict[tuple[str, ...], dict[str, Any]]


def bits_cells(order: Order) -> Cells:
    """(op, backend, shape, dtype) -> status, reason and figures: 1 where bits differ, None where it is no question. Empty without a GPU."""
    if importlib.util.find_spec("opwise.backends") is None:  # a commit before there were any
        return {}
    from opwise.runner import survey

    device = survey.default_device()
    keys = list(there(order, order.bits)) if device != "cpu" else []
    by_backend = {backend: [key for key in keys if key[1] == backend] for backend in dict.fromkeys(key[1] for key in keys)}
    step = counting(order.say, "repeatable? batch-invariant? backends", len(by_backend), every_s=0.0)

    def told(backend: str) -> Cells:
        from opwise.runner.facts import in_two_processes

        names = {(f"{backend}/{op}", f"{op}/{shape}/{dtype}"): (op, b, shape, dtype) for op, b, shape, dtype in by_backend[backend]}
        found = in_two_processes(tuple(names), device, None)
        step()
        return {names[cell]: _figures(fact._asdict()) for cell, fact in found.items()}

    with ThreadPoolExecutor(max(1, len(by_backend))) as pool:
        return {key: cell for cells in pool.map(told, by_backend) for key, cell in cells.items()}


def _figures(fact: Mapping[str, Any]) -> dict[str, Any]:
    """Of measure.sameness.Facts. What was not found out has failed, with the reason."""
    known, invariant = fact["repeatable"] is not None, fact["batch_invariant"]
    return {
        "status": "ok" if known else "failed",
        "reason": fact["differs"],
        "not_repeatable": int(not fact["repeatable"]) if known else None,
        "batch_variant": None if invariant is None else int(not invariant),
    }
