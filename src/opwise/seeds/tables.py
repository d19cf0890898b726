"""Tables of a run, for the terminal and in Markdown: one per source, the published figure beside the one from here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.markup import escape
from rich.table import Table

from opwise.seeds.experiment import DIFFERS, ELSEWHERE, FAILED, NEEDS, SHOWN, Experiment, Outcome
from opwise.seeds.gpus import GPUS
from opwise.seeds.store import SeedRun
from opwise.seeds.table import EXPERIMENTS

STYLES = {SHOWN: "green", DIFFERS: "bold yellow", FAILED: "bold red", NEEDS: "yellow", ELSEWHERE: "dim"}
COLUMNS = ("experiment", "published", "here", "ratio", "of limits", "SOL", "found")
NUMBERS = COLUMNS[3:6]
EXPLAINED = (
    "ratio: published over here; of limits: the limit of the published GPU, by its data sheet, over the one measured here; "
    "SOL: that limit over the time here. ours: in no source, noted by this project. "
    "Where the ratio is larger than that of limits, more has changed than the hardware."
)


def by_source(run: SeedRun) -> Iterator[tuple[str, list[tuple[Experiment, Outcome]]]]:
    """Outcomes by source, in the table's order. An unknown experiment goes last, under its own name."""
    known = {outcome.name: outcome for outcome in run.outcomes}
    pairs = [(e, known.pop(e.name)) for e in EXPERIMENTS.values() if e.name in known]
    pairs += [(Experiment(name, "No longer in the table", name), outcome) for name, outcome in known.items()]
    for source in dict.fromkeys(e.source for e, _ in pairs):
        yield source, [(e, outcome) for e, outcome in pairs if e.source == source]


def cells(experiment: Experiment, outcome: Outcome, device: str) -> tuple[str, ...]:
    published, gpu = experiment.published, experiment.published.gpu
    there = f"{published.text} ({GPUS[gpu].name})" if gpu and published.text else published.text
    there = f"ours: {there}" if published.ours else there
    here = f"{outcome.here} ({device})" if outcome.here and device else outcome.here
    return (
        f"{experiment.name}: {experiment.what}",
        there or "no figure",
        here,
        f"{outcome.ratio:.3g}" if outcome.ratio and not published.ours else "",
        f"{outcome.limits_ratio:.3g}" if outcome.limits_ratio and not published.ours else "",
        f"{outcome.sol:.2f}" if outcome.sol else "",
        told(outcome),
    )


def told(outcome: Outcome) -> str:
    """The finding, after the status if that is not `shown`."""
    if outcome.status == ELSEWHERE:
        return f"see `{outcome.found}`"
    if outcome.status in (SHOWN, NEEDS):
        return outcome.found
    return f"{outcome.status}: {outcome.found}"


def rich_tables(run: SeedRun) -> Iterator[tuple[str, Table]]:
    for source, pairs in by_source(run):
        table = Table(show_edge=False, pad_edge=False)
        for name in COLUMNS:
            right = name in NUMBERS
            table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right, ratio=None if right else 1)
        for experiment, outcome in pairs:
            *plain, found = cells(experiment, outcome, "")
            table.add_row(*map(escape, plain), f"[{STYLES[outcome.status]}]{escape(found)}[/]")
        yield source, table


def markdown(run: SeedRun) -> str:
    lines = [f"{where(run)}. {EXPLAINED}"]
    for source, pairs in by_source(run):
        lines += ["", f"**{source}**", "", f"| {' | '.join(COLUMNS)} |", "| --- | --- | --- | ---: | ---: | ---: | --- |"]
        for experiment, outcome in pairs:
            name, *rest = cells(experiment, outcome, "")
            head, _, what = name.partition(": ")
            lines.append(f"| `{head}`: {_plain(what)} | {' | '.join(map(_plain, rest))} |")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """One line without what Markdown would take for its own; names of C++ templates have angle brackets."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;").replace("*", "\\*")


def where(run: SeedRun) -> str:
    changed = ", changed since" if run.facts.get("dirty") else ""
    driver = f", driver {run.facts.get('driver') or 'none'}" if run.gpu else ""
    return f"{run.device}{driver}, commit {run.facts.get('commit') or 'unknown'}{changed}, {run.time}, {run.seconds:.0f} s"


def counted(outcomes: Sequence[Outcome]) -> str:
    return ", ".join(f"{n} {status}" for status in STYLES if (n := sum(o.status == status for o in outcomes)))
