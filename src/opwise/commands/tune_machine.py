"""`opwise tune --machine`: the numbers of this GPU by which products' times are predicted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from opwise.backends import tuned_table
from opwise.backends.gemm import gpu
from opwise.backends.gemm.gpu import Gpu
from opwise.commands.console import fail, stderr, stdout
from opwise.commands.executors import ready
from opwise.runner import WorkerLost
from opwise.runner.supervisor import Patience, Worker
from opwise.tuning import fitting, machine
from opwise.tuning.fitting import Sample
from opwise.tuning.machine import FEWEST, PRODUCT_S, Outline, Sampled
from opwise.tuning.standing import Facts

PLAN_S, FIT_S = 120.0, 15.0


def tune_machine(device: str | None, root: Path, share: bool, as_json: bool) -> None:
    """Measures, fits and stores the numbers of `device`, a GPU. Ctrl-C leaves stored numbers unchanged."""
    with ready(device, share=share) as here:
        outline = _outline(here.survey.device)
        try:
            samples, clocks, lost = _measured(outline, here.survey.device, here.survey.facts)
            products = len({sample.product for sample in samples})
            if products < FEWEST:
                _told(lost)
                fail(f"{products} products have times, {FEWEST} are needed: see why above, and opwise backends for what CuPy lacks")
            start = replace(outline.start, clock_mhz=median(clocks)) if clocks else outline.start
            found = _fitted(samples, start)
        except KeyboardInterrupt:
            stderr.print("interrupted; the numbers stay as they were", style="yellow", highlight=False)
            raise typer.Exit(130) from None
    found = gpu.Gpu(**{name: _rounded(value) for name, value in asdict(found).items()})  # type: ignore[arg-type]
    path = gpu.write(found, root, str(here.survey.facts["device"]))
    if as_json:
        typer.echo(json.dumps({"device": here.survey.facts["device"], "numbers": asdict(found)}))
    else:
        grouped = fitting.by_product(samples)
        _line(f"{len(samples)} times of {products} products. What the model chooses, and says,")
        _line(f"by the numbers that ship: {fitting.loss(grouped, start)}")
        _line(f"by this GPU's own: {fitting.loss(grouped, found)}")
        stdout.print(numbers(found, outline.start))
        _line(f"stored in {path}")
    _told(lost)


def _told(lost: list[str]) -> None:
    for line in lost:
        stderr.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)


def _outline(device: str) -> Outline:
    try:
        with stderr.status("looking at the plans"), Worker(device) as worker:
            found: Outline = worker.ask("apply", (machine.outlined, device), Patience(PLAN_S))
    except WorkerLost as lost:
        fail(f"the plans cannot be read: {lost.reason}")
    return found


def _measured(outline: Outline, device: str, facts: Facts) -> tuple[list[Sample], list[float], list[str]]:
    """Times, SM clocks meanwhile, and what has no time."""
    samples, clocks, lost = list[Sample](), list[float](), list[str]()
    jobs = outline.sheet.jobs
    events = machine.measured(outline.sheet, device, facts)
    try:
        with _bar() as progress:
            task = progress.add_task("starting", total=outline.sheet.compiling_s + PRODUCT_S * len(jobs))
            for event in events:
                _take(event.found, samples, clocks, lost)
                progress.update(task, advance=event.seconds, description=event.text[:60])
    finally:
        events.close()
    return samples, clocks, lost


def _take(found: Sampled, samples: list[Sample], clocks: list[float], lost: list[str]) -> None:
    samples += found.samples
    clocks += [found.clock_mhz] if found.clock_mhz else []
    lost += found.lost


def _fitted(samples: list[Sample], start: Gpu) -> Gpu:
    with _bar() as progress:
        task = progress.add_task("fitting", total=1.0)
        return fitting.fit(samples, start, most_s=FIT_S, told=lambda done: progress.update(task, completed=done))


def _bar() -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=stderr, transient=True)


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.4g}")


# -- what is stored ----------------------------------------------------------------------------------------------------------


def numbers(found: Gpu, ships: Gpu) -> Grid:
    """Table with a row per number: this GPU's and the shipped one."""
    shown = Grid(show_edge=False, pad_edge=False)
    shown.add_column("number")
    for column in ("ships", "this GPU", "ratio"):
        shown.add_column(column, justify="right")
    before: Mapping[str, float] = asdict(ships)
    for name, value in asdict(found).items():
        same = value == before[name]
        shown.add_row(name, f"{before[name]:.4g}", "the same" if same else f"{value:.4g}", "" if same else f"{value / before[name]:.2f}")
    return shown


def show(device: str, as_json: bool) -> None:
    """Prints the stored numbers of a device, or which shipped ones are used."""
    try:
        found = gpu.stored(device)
    except ValueError as torn:
        _line(str(torn))
        return
    if as_json:
        if found is not None:
            typer.echo(json.dumps({"device": device, "numbers": asdict(found)}))
    elif found is not None:
        _line("the GPU's numbers, by which products' times are predicted:")
        stdout.print(numbers(found, gpu.SHIPPED.get(device, gpu.H100)))
    else:
        ships = "its model's" if device in gpu.SHIPPED else "an H100's"
        _line(f"the GPU's numbers: {ships}, as they ship: opwise tune --machine measures them here")


def reset(device: str) -> bool:
    """Removes the stored numbers; returns whether there were any."""
    root = tuned_table.folder()
    path = gpu.path_of(root, device) if root is not None else None
    if path is None or not path.is_file():
        return False
    path.unlink()
    return True


def _line(text: str) -> None:
    stdout.print(text, highlight=False, markup=False, soft_wrap=True)
