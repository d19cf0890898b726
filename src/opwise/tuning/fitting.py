"""From measured workloads to all others: the model fitted anew, or the nearest measured one, and the proof that it chooses no worse.

The proof: each measured workload is left out in turn, the rule made from the others alone chooses for it, and what it chose is compared
with the quickest. A rule that is not better than the shipped choices by that test is not taken: only the measured workloads are tuned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from opwise.backends.tuned import nearest
from opwise.backends.tuned_table import Elsewhere, Row
from opwise.ops.spec import Workload
from opwise.tuning.ways import Machine, Ways, least_squares

FEWEST = 4  # workloads of a kind: of three, two are left to learn from
Fitted = Mapping[str, tuple[float, float]]


def elsewhere(of: Ways, rows: Sequence[Row], machine: Machine) -> dict[str, Elsewhere]:
    """The rule of each kind of workloads that `rows` are of."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(of.kind(row.dtype), []).append(row)
    return {kind: _rule(of, kind, tuple(found), machine) for kind, found in kinds.items()}


def _rule(of: Ways, kind: str, rows: tuple[Row, ...], machine: Machine) -> Elsewhere:
    shipped = _mean([row.loss(row.shipped) for row in rows])
    if len(rows) < FEWEST:
        return Elsewhere(shipped_loss=shipped)
    modelled = any(of.term(name, Workload.parse(row.workload), machine) is not None for row in rows for name in row.times)
    choose = _by_model if modelled else _by_nearest
    left_out = [choose(of, [other for other in rows if other is not row], row, machine) for row in rows]
    loss = _mean([row.loss(name) if name in row.times else max(map(row.loss, row.times)) for row, name in zip(rows, left_out, strict=True)])
    if not loss < shipped:
        return Elsewhere(loss=loss, shipped_loss=shipped)
    if not modelled:
        return Elsewhere("nearest", loss, shipped)
    return Elsewhere("fitted", loss, shipped, of.parameters(kind, fitted(of, rows, machine), rows, machine))


def _mean(losses: Sequence[float]) -> float:
    return round(math.exp(fmean(math.log(loss) for loss in losses)), 6)


def _by_nearest(of: Ways, others: Sequence[Row], row: Row, machine: Machine) -> str:
    """As a plan would: of the same dtype, and the shipped choice where that has nothing measured or cannot have what is near."""
    name = nearest({other.sizes: other.chosen for other in others if other.dtype == row.dtype}, row.sizes)
    return name if name is not None and name in row.times else row.shipped


def _by_model(of: Ways, others: Sequence[Row], row: Row, machine: Machine) -> str:
    workload = Workload.parse(row.workload)
    parameters = of.parameters(of.kind(row.dtype), fitted(of, others, machine), others, machine)
    return of.choose(workload, machine, parameters)


def fitted(of: Ways, rows: Sequence[Row], machine: Machine) -> Fitted:
    """(a, b) of each configuration that the rows determine."""
    found = {}
    for name in dict.fromkeys(name for row in rows for name in row.times):
        terms = [(of.term(name, Workload.parse(row.workload), machine), row.times[name].us) for row in rows if name in row.times]
        fit = least_squares([(term, us) for term, us in terms if term is not None])
        if fit is not None:
            found[name] = fit
    return found
