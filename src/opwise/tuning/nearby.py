"""The rule for unmeasured workloads: the configuration of the nearest measured one, and the test that it is no worse than the shipped
choice.

The test leaves out each measured workload in turn; the rule from the others chooses for it, and its choice is compared with the fastest. A
rule that is not better than the shipped choices in this test is not used: only the measured workloads are tuned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from opwise.backends.tuned import nearest
from opwise.backends.tuned_table import Elsewhere, Row

FEWEST = 4  # workloads of a dtype: of three, two are left to learn from


def elsewhere(rows: Sequence[Row]) -> dict[str, Elsewhere]:
    """The rule for each dtype of `rows`."""
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
