"""Records in the groups that figures and tables show, in the order of OPS; ops that are not installed here come last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

from opwise.ops import OPS
from opwise.record import Record


def by_op(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    order = list(OPS)
    return sorted(grouped(records, lambda r: r.op), key=lambda pair: order.index(pair[0]) if pair[0] in OPS else len(order))


def in_order(records: Iterable[Record]) -> list[Record]:
    """Records in the order of the op's sets, or by size. A run of several workers records jobs as they end, the longest first."""
    return sorted(records, key=_place)


def _place(r: Record) -> tuple[int, int, tuple[int, ...], int]:
    spec = OPS.get(r.op)
    if spec is None:
        return len(OPS), 0, r.shape, 0
    dtypes = spec.dtypes
    return (
        list(OPS).index(r.op),
        _shapes(r.op).get(r.shape, len(_shapes(r.op))),
        r.shape,
        dtypes.index(r.dtype) if r.dtype in dtypes else -1,
    )


@cache
def _shapes(op: str) -> dict[tuple[int, ...], int]:
    sets = OPS[op].workloads
    return {shape: n for n, shape in enumerate(dict.fromkeys(w.shape for name in ("core", *sets) for w in sets.get(name, ())))}


def grouped(records: Iterable[Record], key: Callable[[Record], str]) -> list[tuple[str, list[Record]]]:
    groups: dict[str, list[Record]] = {}
    for r in records:
        groups.setdefault(key(r), []).append(r)
    return list(groups.items())
