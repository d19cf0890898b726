"""Which backend to use for an op, at a shape and dtype, on a GPU, for a purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opwise import clocks, library
from opwise.choosing import by_energy
from opwise.choosing.asked import NothingMeasured, check, gpu_here, gpu_of, machine_with, workload_of
from opwise.choosing.by_energy import ENERGY
from opwise.choosing.interpolate import Interpolant, best_case, nearest
from opwise.choosing.invariant import price, varying
from opwise.choosing.ranking import BASELINE, Choice, Standing, counted, paired, ranked, sentence
from opwise.choosing.spread import Across, told
from opwise.choosing.store import Figures, Gpu, Sizes, Store, refresh, stale
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.record import CAPPED, FULL, STATES, Interval, Record

OWN = Path("results")
WARM = "warm"
TAKEN: Mapping[str, Callable[[Record], Interval | None]] = {
    FULL: lambda r: r.kernel_us(FULL), CAPPED: lambda r: r.kernel_us(CAPPED), WARM: lambda r: r.kernel_warm_us}  # fmt: skip
BASES = ("measured", "interpolated", "extrapolated", "predicted")


def choose(
    op: str, *inputs_or_shape: Any, dtype: str | torch.dtype | None = None, purpose: str = "stream",
    device: str | torch.device | None = None, measure: bool = False, results: Path = OWN, clock: str = clocks.BOTH, layout: str = "",
    invariant: bool = False,
) -> Choice:  # fmt: skip
    """The backend to use, with the ranking it comes from.

    inputs_or_shape: the op's tensors, or a shape: `(4096, 4096)`, `4096, 4096` or `"4096x4096"`; a matmul's is (M, K, N). dtype: float32,
    float16, bfloat16 or, for matmul, tfloat32; required with a shape, otherwise taken from the tensors. layout, only with a shape: of a
    matmul's factors, NT, TN or TT if one is a transposed view, as in x @ w.t().

    purpose: stream, kernel, graph, call or energy (see PURPOSES). device: cuda:0, a recorded GPU's name such as 'nvidia-h200', or None: the
    tensors' GPU; with a shape the first GPU, else the one measured last. CPU tensors go to torch eager, as in opwise.softmax(x), unless a
    device is named. measure: time all backends now, and store the run under `results`. clock: full, capped or both (see clocks.CLOCKS), for
    the cold kernel time of `stream` and `kernel`. invariant: only backends and variants `invariant` that `opwise run --facts` found
    batch-invariant at this workload; `why` states the cost.

    Raises ValueError or TypeError for an invalid workload, purpose, clock or device; NothingMeasured if no figure matches; RuntimeError for
    `measure` without a GPU."""
    check(purpose, clock)
    workload = workload_of(op, inputs_or_shape, dtype, layout)
    if device is None and isinstance(inputs_or_shape[0], Tensor):
        if not inputs_or_shape[0].is_cuda:
            return _on_cpu(workload, purpose, clock)
        device = inputs_or_shape[0].device
    if measure:
        from opwise.choosing.selection import forget

        measured(workload, device, results, energy=purpose == ENERGY)
        forget()  # what is dispatched from now on may know of it
    runs = library.stored(results)
    return choose_from(Store.load(runs, workload.op, purpose), workload, device, purpose, clock, invariant, runs)


def _on_cpu(workload: Workload, purpose: str, clock: str) -> Choice:
    why = "torch_eager: it computes CPU tensors, and nothing is timed there. Name a device, as in device='nvidia-h200', to ask for a GPU."
    return Choice(workload.op, workload.shape, workload.dtype, purpose, "cpu", "", BASELINE, why, None, None, (), {}, clock=clock,
                  layout=workload.layout)  # fmt: skip


def measured(workload: Workload, device: str | torch.device | None, results: Path = OWN, *, energy: bool = False) -> Path | None:
    """Times every backend at a workload on this machine's GPU; with `energy`, measures its joules first. Returns the path of the stored
    run.

    Raises RuntimeError without a GPU or if the measuring process is lost, ValueError for a device that is not here."""
    from opwise.runner.session import Session
    from opwise.runner.survey import survey

    if not torch.cuda.is_available():
        raise RuntimeError("nothing can be measured here, torch sees no GPU: measure on a machine with one, or ask without measuring")
    session = Session.planned(survey(gpu_here(device)), [str(workload)], "core", variants=False, timed=True,
                              out=results)  # fmt: skip
    if energy:
        session.find_energy()
    for _ in session.events():
        pass
    return session.path


def choose_from(
    store: Store, workload: Workload, device: str | torch.device | Gpu | None, purpose: str = "stream", clock: str = clocks.BOTH,
    invariant: bool = False, runs: Sequence[Path] = (),
) -> Choice:  # fmt: skip
    """The choice from a store's records; `runs`: those whose older records help to decide ties. Raises NothingMeasured if none matches,
    ValueError for an unknown device."""
    gpu = device if isinstance(device, Gpu) else gpu_of(store, device)
    asked = workload.op, workload.dtype, gpu, workload.layout
    found, measured_on = store.figures(*asked, invariant), gpu
    if not found.timed and not invariant and purpose != ENERGY and (kin := store.kin(*asked)):
        own, (measured_on, found) = found, kin
        timed = {backend: cells for backend, cells in found.timed.items() if backend not in own.barred}
        found = Figures(timed, {**found.barred, **own.barred}, {**found.refused, **own.refused})
    excluded, known = dict(found.barred), {}
    wanted = (WARM,) if purpose == "graph" else clocks.states_of(clocks.BOTH if purpose == "call" else clock)
    for backend, cells in found.timed.items():
        reason = found.refused.get(backend, {}).get(workload.shape) or (varying(cells, workload) if invariant else "")
        times = {} if reason else _known(cells, found, workload, purpose)
        if any(name in times for name in wanted):
            known[backend] = times
        elif purpose == ENERGY:
            excluded[backend] = reason or by_energy.unmeasured(cells, workload)
        else:
            excluded[backend] = reason or ("only its power-capped time is on record" if times else f"no {purpose} time is on record")
    excluded |= {b: next(iter(reasons.values())) for b, reasons in found.refused.items() if b not in found.timed and b not in excluded}
    if not known:
        reasons = set(excluded.values())
        why = reasons.pop() if len(reasons) == 1 else "; ".join(f"{b}: {reason}" for b, reason in excluded.items())
        time = f"{purpose if purpose == ENERGY else f'{purpose} time'}{' at full clock' if clock == FULL else ''}"
        takes = by_energy.measures(workload) if purpose == ENERGY else refresh([workload])
        layout = f", factors as {workload.layout}," if workload.layout else ""
        raise NothingMeasured(f"no {time} of {workload.op} in {workload.dtype}{layout} on {gpu} is on record{f' ({why})' if why else ''}: "
                              f"on that GPU, {takes} or `opwise choose … --measure` takes it")  # fmt: skip
    compared = tuple(name for name in wanted if all(name in times for times in known.values()))
    standings = [_standing(b, times, compared, workload, purpose, machine_with(measured_on)) for b, times in known.items()]
    if measured_on != gpu:
        standings = [replace(standing, basis="predicted") for standing in standings]
    states = tuple(name for name in compared if name in STATES)
    if runs and purpose in ("stream", "kernel"):
        across = Across.load((s.from_records[0] for s in standings if s.basis == "measured"), runs)
        standings = [replace(s, across=_across(across, s, purpose, states)) for s in standings]
        ranking = ranked(standings, purpose, states, across.ratios)
    else:
        ranking = ranked(standings, purpose, states)
    beside = {s.backend: pair for s in ranking[1:] if (pair := paired(ranking[0], s, purpose))}
    eager = next((s for s in ranking if s.backend == BASELINE), None)
    outdated = [r.workload for s in ranking if s.stale for r in s.from_records if s.basis == "measured"]
    outdated += [workload] if any(s.basis == "predicted" or (s.stale and s.basis != "measured") for s in ranking) else []
    again = by_energy.measures(workload) if purpose == ENERGY else refresh(outdated)
    why = sentence(ranking, purpose, states, clock)
    why += price(ranking[0], choose_from(store, workload, gpu, purpose, clock).chosen) if invariant else ""
    why += f" Nothing of {gpu.device} is on record: figures of {measured_on.device}." if measured_on != gpu else ""
    return Choice(
        workload.op, workload.shape, workload.dtype, purpose, gpu.device, gpu.capability, ranking[0].backend,
        why, eager.counts / ranking[0].counts if eager else None, ranking[1].counts / ranking[0].counts if len(ranking) > 1 else None,
        tuple(ranking), excluded,
        again if outdated else "", clock, states, workload.layout,
        told(ranking[0].from_records[0], {backend: other for backend, (_, other) in beside.items()}, workload, states),
    )  # fmt: skip


def _across(across: Across, s: Standing, purpose: str, states: tuple[str, ...]) -> str:
    """ "" where the kernel's time is not measured, or not what counts."""
    if s.basis != "measured" or (purpose == "stream" and s.call_us > s.kernel_us):
        return ""
    return str(across.spread(s.from_records[0], states) or "")


class _At(NamedTuple):
    """A kernel time in us with its interval, one of BASES, and the records that it comes from."""

    time: tuple[float, float, float]
    basis: str
    used: Mapping[Sizes, Record]


def _known(cells: Mapping[Sizes, Record], found: Figures, workload: Workload, purpose: str) -> dict[str, _At]:
    """The kernel times of a backend that are known at a workload, by their names in TAKEN.

    Between measured shapes the nearest of them tells the states: the same time in both where the power cap does not change its time; one
    for each where it has both, and where the shapes that are known at full clock enclose this one as well as all of them; else the
    power-capped one alone. What is said of large products at full clock must not rest on small ones, of which older records tell it too.
    """
    if purpose == "graph":
        warm = _at(cells, found, workload, WARM)
        return {WARM: warm} if warm else {}
    if purpose == ENERGY:
        states = by_energy.known_states(cells, workload)
        return {state: at for state in states if (at := _at(cells, found, workload, state)) is not None}
    capped = _at(cells, found, workload, CAPPED)
    if capped is None:
        return {}
    closest = cells[nearest(list(cells), OPS[workload.op].sizes(workload.shape), _granule(workload))]
    if closest.kernel_capped_us is None:
        return dict.fromkeys(STATES, capped)
    full = _at(cells, found, workload, FULL) if closest.kernel_us(FULL) is not None else None
    if full is None or BASES.index(full.basis) > BASES.index(capped.basis):
        return {CAPPED: capped}
    return {FULL: full, CAPPED: capped}


def _at(cells: Mapping[Sizes, Record], found: Figures, workload: Workload, name: str) -> _At | None:
    """None where no record of the backend has that time."""
    sizes = OPS[workload.op].sizes(workload.shape)
    times = {at: time for at, r in cells.items() if (time := TAKEN[name](r)) is not None}
    if sizes in times:
        return _At(_time(times[sizes]), "measured", {sizes: cells[sizes]})
    if not times:
        return None
    kernels = Interpolant([(at, t.median) for at, t in times.items()], _trend(found, workload, name), granule=_granule(workload))
    return _At(kernels.at(sizes), "interpolated" if kernels.holds(sizes) else "extrapolated", {at: cells[at] for at in times})


def _standing(
    backend: str, times: Mapping[str, _At], compared: tuple[str, ...], workload: Workload, purpose: str, machine: Any
) -> Standing:
    """By the times `compared`, all of which it has."""
    sizes = OPS[workload.op].sizes(workload.shape)
    kernel = clocks.mean([times[name].time for name in compared])
    basis = max((times[name].basis for name in compared), key=BASES.index)
    used = {at: r for name in compared for at, r in times[name].used.items()}
    calls = {at: r.call_us for at, r in used.items() if r.call_us is not None}
    if sizes in calls:
        call = _time(calls[sizes])
    else:
        call = Interpolant([(at, time.median) for at, time in calls.items()], granule=_granule(workload)).at(sizes)
    us, low, high = counted(purpose, kernel, call)
    full, capped = (times[state].time[0] if state in times else None for state in STATES)
    records = tuple(used.values())
    drawn = by_energy.millijoules(records[0], compared) if purpose == ENERGY else {}
    return Standing(backend, us, low, high, kernel[0], call[0], basis, _stale(records, machine), from_records=records,
                    full_us=full, capped_us=capped, **drawn)  # fmt: skip


def _granule(workload: Workload) -> int:
    """Elements in 16 bytes."""
    return 16 // workload.torch_dtype.itemsize


def _trend(found: Figures, workload: Workload, name: str) -> Any:
    cost = OPS[workload.op].cost

    def cost_of(sizes: tuple[int, ...]) -> tuple[float, float]:
        at = cost(Workload(workload.op, sizes, workload.dtype))
        return at.bytes, at.flops

    every = [(TAKEN[name](r), cost_of(at)) for cells in found.timed.values() for at, r in cells.items()]
    return best_case([(time.median, *costs) for time, costs in every if time is not None], cost_of)


def _stale(records: Iterable[Record], machine: Any) -> str:
    """The first reason, of figures that are taken together."""
    return next(filter(None, (stale(r, machine) for r in records)), "")


def _time(interval: Interval) -> tuple[float, float, float]:
    return interval.median, interval.low, interval.high
