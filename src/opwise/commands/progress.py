"""A session carried out behind a progress bar: cells done and time left, and where there are several GPUs a line for each."""

from __future__ import annotations

from collections import Counter

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from opwise.commands.console import stderr
from opwise.runner.session import Session
from opwise.runner.supervisor import Event
from opwise.scaling import Stranded
from opwise.scaling.order import estimate_s


def carry_out(session: Session, first_call: bool = False) -> bool:
    """Runs the session; True where Ctrl-C ended it early. Where every worker is gone, `session.stranded` says why."""
    shown = Shown(session)
    try:
        with Live(shown.layout, console=stderr, transient=True, refresh_per_second=4):
            if first_call:
                shown.say("first calls, compiler caches empty, then full")
                session.measure_first_calls()
            asked = session.stored_plan
            if asked is not None and asked.facts:
                shown.say("repeatable? batch-invariant?")
                session.find_facts(shown.say)
            if asked is not None and asked.energy:
                session.find_energy(shown.say)
            for event in session.events():
                shown.take(event)
    except KeyboardInterrupt:
        return True
    except Stranded as left:
        session.stranded = str(left)
    return False


class Shown:
    """What is on the terminal meanwhile. The bar advances by what jobs are expected to take, since the longest come first."""

    def __init__(self, session: Session) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[cells]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.overall, self.places = Progress(*columns), Progress(TextColumn("{task.description}"))
        self.layout = Group(self.overall, self.places)
        self.processes, self.cells = session.processes, session.cells * session.processes
        self.weights = {job.workload: estimate_s(job) / len(job.implementations) for job in session.jobs if job.implementations}
        self.done = 0
        self.by_place: Counter[str] = Counter()
        self._lines: dict[str, TaskID] = {}
        total = self.processes * sum(estimate_s(job) for job in session.jobs)
        self._task = self.overall.add_task("starting", total=total, cells=f"0/{self.cells} cells")

    def say(self, text: str) -> None:
        self.overall.update(self._task, description=text)

    def take(self, event: Event) -> None:
        if event.phase is not None:
            told = ", ".join(f"{value} {name}" for name, value in event.phase.items() if name != "kind")
            stderr.print(f"{event.phase.get('kind')}: {told}", highlight=False, markup=False)
        if event.turn is not None:
            what = f"{event.job.workload} {event.turn[0].split('/')[0]} {event.turn[1]}" if event.turn[0] else event.turn[1]
            self._at(event.place, what[:70])
        done = self.processes * len(event.records) if event.passes is None else event.passes
        if done:
            self.done += done
            self.by_place[event.place] += done
            share = self.weights.get(event.job.workload, 0.0) * done
            self.overall.update(self._task, advance=share, cells=f"{self.done}/{self.cells} cells")
            if event.place:
                self._at(event.place, str(event.job.workload))

    def _at(self, place: str, what: str) -> None:
        if not place:
            self.say(what)
            return
        if place not in self._lines:
            self._lines[place] = self.places.add_task("")
            self.say(f"{len(self._lines)} GPUs")
        line = f"{place}  {self.by_place[place]} cells  {what}"
        self.places.update(self._lines[place], description=escape(line))
