"""Records in the groups that figures and tables show, in the order of OPS; an op that is not installed here comes last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from opwise.ops import OPS
from opwise.record import Record


def by_op(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    order = list(OPS)
    return sorted(grouped(records, lambda r: r.op), key=lambda pair: order.index(pair[0]) if pair[0] in OPS else len(order))


def grouped(records: Iterable[Record], key: Callable[[Record], str]) -> list[tuple[str, list[Record]]]:
    groups: dict[str, list[Record]] = {}
    for r in records:
        groups.setdefault(key(r), []).append(r)
    return list(groups.items())
