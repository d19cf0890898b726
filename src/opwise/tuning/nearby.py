"""From measured workloads to all others: what the nearest measured one got, and the proof that it is no worse than what ships.

The proof: each measured workload is left out in turn, the rule made from the others alone chooses for it, and what it chose is compared
with the quickest. A rule that is not better than the shipped choices by that test is not taken: only the measured workloads are tuned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from opwise.backends.tuned import nearest
from opwise.backends.tuned_table import Elsewhere, Row

FEWEST = 4  # workloads of a dtype: of three, two are left to learn from


def elsewhere(rows: Sequence[Row]) -> dict[str, Elsewhere]:
    """The rule of each dtype that `rows` are of."""
    return {dtype: _rule([row for row in rows if row.dtype == dtype]) for dtype in dict.fromkeys(row.dtype for row in rows)}


def _rule(rows: Sequence[Row]) -> Elsewhere:
    shipped = _mean([row.loss(row.shipped) for row in rows])
    if len(rows) < FEWEST:
        return Elsewhere(shipped_loss=shipped)
    loss = _mean([row.loss(_chosen([other for other in rows if other is not row], row)) for row in rows])
    return Elsewhere("nearest" if loss < shipped else "shipped", loss, shipped)


def _mean(losses: Sequence[float]) -> float:
    return round(math.exp(fmean(math.log(loss) for loss in losses)), 6)


def _chosen(others: Sequence[Row], row: Row) -> str:
    """As a plan would choose: the shipped way where it cannot have what is near."""
    name = nearest({other.sizes: other.chosen for other in others}, row.sizes)
    return name if name is not None and name in row.times else row.shipped
