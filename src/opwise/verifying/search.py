"""The search: hypothesis draws cases until the time is up, and minimises failures. Found failures survive any kind of end."""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.verifying.case import VALUES, Case, ranks
from opwise.verifying.trial import Outcome

# Elements that a case may touch, by what runs the kernels, so that one takes some tenths of a second at most; "" is a GPU.
ROOM: Mapping[str, int] = {"greenlets": 5_000, "interpreter": 20_000, "fibres": 60_000, "cpu": 200_000, "": 2**26}
FLOPS_AN_ELEMENT = {True: 16, False: 2048}  # of a product, which interpreters do one by one and a GPU by the thousand
ELEMENTS_A_ROW = 16  # of an op of rows in greenlets, which have a warp or a block of threads a row, whatever its length
ROUND = 200  # cases between two seeds: hypothesis remembers all of a round
SHRINK_S = 20.0  # behind the end of the budget, for a failure that was found before it
Trial = Callable[[Case, Sequence[str]], list[Outcome]]


class Over(BaseException):
    """Ends the search: the time is up or, with a cause, nothing can be tried. Not an Exception, which would be a failure of the case."""


@dataclass(frozen=True)
class Failure:
    """The smallest failing case of an implementation. `again`: whether it failed when repeated."""

    case: Case
    outcome: Outcome
    again: bool


@dataclass
class Search:
    """`rooms`: implementation -> where it runs, a key of ROOM. `trial` runs a case for some implementations."""

    trial: Trial
    rooms: Mapping[str, str]
    dtypes: Sequence[str] = ()
    seed: int = 0
    tell: Callable[[Search, Case], None] = lambda search, case: None
    failures: dict[str, Failure] = field(default_factory=dict)
    cases: int = 0
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)  # (implementation, status): how often
    hunted: str = ""  # whose failure is being shrunk
    _best: tuple[Case, Outcome] | None = None
    _right: set[tuple[str, Case]] = field(default_factory=set)  # hypothesis draws some again

    def run(self, seconds: float) -> None:
        """Runs until the time is over, or each implementation has failed. Exceptions of `trial` and KeyboardInterrupt propagate, with
        `failures` as they are."""
        import hypothesis.configuration

        self._end, round_ = time.monotonic() + seconds, 0
        with tempfile.TemporaryDirectory() as folder:  # for what hypothesis would leave in the current one
            hypothesis.configuration.set_hypothesis_home_dir(folder)
            try:
                while len(self.failures) < len(self.rooms):
                    before = self.cases
                    self._round(self.seed + round_)
                    if self.cases == before:
                        return  # all has been tried, or nothing fits
                    self._keep()
                    round_ += 1
            except Over as over:
                if over.__cause__ is not None:
                    raise over.__cause__ from None
            finally:
                hypothesis.configuration.set_hypothesis_home_dir(None)
                self._keep()

    def _keep(self) -> None:
        """What was shrunk, made smaller still where that is one step away, and tried once more."""
        (hunted, self.hunted), (best, self._best) = (self.hunted, ""), (self._best, None)
        if not hunted or best is None:
            return
        self.failures[hunted] = Failure(*best, again=False)
        self.failures[hunted] = Failure(*best, again=self.trial(best[0], [hunted])[0].bad)
        steps = _simpler(best[0]) if self.failures[hunted].again else iter(())
        while (case := next(steps, None)) is not None and time.monotonic() < self._end + SHRINK_S:
            outcome = self.trial(case, [hunted])[0]
            if outcome.bad:
                self.failures[hunted] = Failure(case, outcome, again=True)
                steps = _simpler(case)

    def _round(self, seed: int) -> None:
        import hypothesis
        from hypothesis import HealthCheck, Phase, Verbosity
        from hypothesis.errors import Unsatisfiable

        settings = hypothesis.settings(
            max_examples=ROUND,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
            verbosity=Verbosity.quiet,
        )
        given: Any = hypothesis.given(self._cases())
        attempt = hypothesis.seed(seed)(settings(given(self._attempt)))
        try:
            attempt()
        except Exception as error:  # of a case that fails, or that fails only sometimes
            if not self.hunted and not isinstance(error, Unsatisfiable):
                raise

    def _attempt(self, case: Case) -> None:
        if time.monotonic() > self._end + (SHRINK_S if self.hunted else 0.0):
            raise Over
        names = [
            n for n in self._names(case.workload) if n not in self.failures and self.hunted in ("", n) and (n, case) not in self._right
        ]
        if not names:
            return
        self.tell(self, case)
        try:
            outcomes = self.trial(case, names)
        except Exception as error:
            raise Over from error
        self.cases += 1
        self.outcomes.update((o.implementation, o.status) for o in outcomes)
        for outcome in outcomes:
            if outcome.bad:
                self.hunted = outcome.implementation
                if self._best is None or size(case) < size(self._best[0]):
                    self._best = case, outcome
                raise AssertionError(outcome.reason)
            self._right.add((outcome.implementation, case))

    def _names(self, workload: Workload) -> list[str]:
        work = {room: elements(workload, room) <= ROOM[room] for room in set(self.rooms.values())}
        return [name for name, room in self.rooms.items() if op_of(name) == workload.op and work[room]]

    def _cases(self) -> Any:
        """The strategy. What is drawn early is shrunk first; of alternatives the first is the simplest."""
        from hypothesis import assume
        from hypothesis import strategies as st

        ops = [op for op in OPS if any(op_of(name) == op for name in self.rooms)]

        @st.composite
        def cases(draw: Any) -> Case:
            spec = OPS[draw(st.sampled_from(ops))]
            rooms = {room for name, room in self.rooms.items() if op_of(name) == spec.name}
            room = draw(st.sampled_from(sorted(rooms, key=ROOM.__getitem__)))
            rank = draw(st.sampled_from(ranks(spec)))
            dtype = draw(st.sampled_from([d for d in spec.dtypes if not self.dtypes or d in self.dtypes]))
            sides = [_side(draw, ROOM[room]) for _ in range(max(ranks(spec)))]  # all, so that fewer of them leave what follows as it is
            layout = draw(st.sampled_from(spec.layouts)) if len(spec.layouts) > 1 and draw(st.booleans()) else ""
            workload = Workload(spec.name, tuple(sides[:rank]), dtype, layout)
            assume(elements(workload, room) <= ROOM[room])
            values = draw(st.sampled_from(list(VALUES)))
            places = len(spec.inputs) + 1
            offsets = draw(st.just((0,) * places) | st.tuples(*[st.integers(0, 9)] * places))
            return Case(workload, values, offsets, draw(st.integers(0, 2**31 - 1)))

        return cases()


def op_of(implementation: str) -> str:
    return implementation.partition("/")[2].partition(":")[0]


def elements(workload: Workload, room: str) -> int:
    """Cost of a case there: elements read and written, or a product's flops in units that take the time of one element."""
    spec = OPS[workload.op]
    cost = spec.cost(workload)
    flops = cost.flops // FLOPS_AN_ELEMENT[bool(room)] if len(spec.inputs) > 1 else 0
    blocks = ELEMENTS_A_ROW * workload.shape[0] if room == "greenlets" and len(spec.sizes(workload.shape)) == 2 else 0
    return max(cost.bytes // workload.torch_dtype.itemsize, flops, blocks)


def size(case: Case) -> tuple[Any, ...]:
    """The order of failures: smaller ones are easier to examine."""
    work, order = case.workload, list(VALUES)
    return (
        elements(work, "cpu"),
        sum(work.shape),
        order.index(case.values),
        sum(case.offsets),
        OPS[work.op].dtypes.index(work.dtype),
        OPS[work.op].layouts.index(work.layout),
        case.seed,
    )


def _simpler(case: Case) -> Iterator[Case]:
    """Cases a step smaller. hypothesis does not get there where a side was drawn as a multiple, or beside a power of two."""
    work, spec = case.workload, OPS[case.workload.op]
    shapes = [(math.prod(work.shape),)] if 1 in ranks(spec) and len(work.shape) > 1 else []
    for i, side in enumerate(work.shape):
        smaller = [side - 2**k for k in reversed(range(side.bit_length())) if side > 2**k]
        shapes += [(*work.shape[:i], n, *work.shape[i + 1 :]) for n in smaller]
    found = [replace(case, workload=replace(work, shape=shape)) for shape in shapes]
    found += [replace(case, workload=replace(work, dtype=dtype)) for dtype in spec.dtypes]
    found += [replace(case, workload=replace(work, layout=layout)) for layout in spec.layouts]
    found += [replace(case, values=values) for values in VALUES] + [replace(case, seed=0)]
    for i, offset in enumerate(case.offsets):
        found += [replace(case, offsets=(*case.offsets[:i], n, *case.offsets[i + 1 :])) for n in range(offset)]
    return (smaller for smaller in found if size(smaller) < size(case))


def _side(draw: Any, most: int) -> int:
    """As likely short as long; or beside a power of two, where tiles and blocks end; or of whole 16-byte pieces; or, seldom, none."""
    from hypothesis import strategies as st

    kind, power = draw(st.integers(0, 19)), 2 ** draw(st.integers(0, most.bit_length() - 1))
    if kind < 8:
        return int(draw(st.integers(1, power)))
    if kind < 14:
        return int(draw(st.integers(max(1, power - 1), min(most, power + 1))))
    return 8 * int(draw(st.integers(1, max(1, power // 8)))) if kind < 19 else 0
