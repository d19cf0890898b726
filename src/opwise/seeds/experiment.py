"""What an experiment is, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from opwise.ops.spec import Cost

# Lanes. The first three time nothing and run side by side, each in a worker of its own; then come the two that do, one after the other.
# Whoever has used the profiler keeps CUPTI attached, which costs each later launch: so what is timed comes in a process before it.
BUILD, COMPILE, CHECK, TIMED, PROFILED = "build", "compile", "check", "timed", "profiled"
UNTIMED = (BUILD, COMPILE, CHECK)
LANES = (*UNTIMED, TIMED, PROFILED)


def environment(lane: str, device: str) -> dict[str, str]:
    """Of a lane's worker. Triton is compiler or interpreter from its first import on, and torch's profiler or Dynamo may be the first."""
    return {"TRITON_INTERPRET": str(int(device == "cpu" and lane != COMPILE))}


SHOWN, DIFFERS, NEEDS, FAILED, ELSEWHERE = "shown", "differs", "needs", "failed", "elsewhere"


@dataclass(frozen=True)
class Published:
    """What the source says. `us`: the one figure of it that is compared, us; `gpu`: a key of gpus.GPUS; `work`: what its limit is of.

    `ours`: no source holds it; this project noted it, and nothing is compared with it.
    """

    text: str = ""
    gpu: str = ""
    us: float | None = None
    work: Cost | None = None
    ours: bool = False


@dataclass(frozen=True)
class Experiment:
    """`run`: "module:function", taking a place.Place and returning Findings. `needs`: what a machine without a GPU lacks for it, ""
    where it runs there too, in `cpu_lane` and without a time of a GPU. `elsewhere`: the command that does it instead."""

    name: str
    source: str
    what: str
    run: str = ""
    lane: str = TIMED
    cpu_lane: str = CHECK
    needs: str = ""
    published: Published = Published()
    seconds: float = 60.0
    elsewhere: str = ""


@dataclass(frozen=True)
class Findings:
    """What an experiment's function returns. `here`: the figure, shortly; `found`: what it says, in a sentence; `shown`: did what was
    to be shown come out? `us`: the figure beside Published.us. `figures`: name with its unit -> value. `rows`: points of a plot.

    `tables`: title -> a profiler's table as it prints it. `files`: name -> text of what the source has written to a file, a trace.
    """

    here: str
    found: str
    shown: bool = True
    us: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...] = ()
    tables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """One experiment as it is kept. `ratio`: published over here; `limits_ratio`: the same of the two limits, data sheet over measured.

    `status`: shown, differs (it ran, and something else came out), needs, failed, elsewhere; `found` holds the reason of the last three.
    `files` are not stored with a run: `opwise seeds --keep` writes them.
    """

    name: str
    status: str
    here: str = ""
    found: str = ""
    us: float | None = None
    limit_there_us: float | None = None
    limit_here_us: float | None = None
    published_us: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...] = ()
    seconds: float = 0.0
    tables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def ratio(self) -> float | None:
        return self.published_us / self.us if self.published_us and self.us else None

    @property
    def sol(self) -> float | None:
        """limit / time, here."""
        return self.limit_here_us / self.us if self.limit_here_us and self.us else None

    @property
    def limits_ratio(self) -> float | None:
        return self.limit_there_us / self.limit_here_us if self.limit_there_us and self.limit_here_us else None

    def as_data(self) -> dict[str, Any]:
        stored = {name: value for name, value in asdict(self).items() if name != "files"}
        return stored | {"ratio": self.ratio, "limits_ratio": self.limits_ratio, "sol": self.sol}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Outcome:
        """What `as_data` gave, or an opwise that knew more fields."""
        kept = {name: data[name] for name in (f.name for f in fields(cls)) if name in data}
        return cls(**{**kept, "rows": tuple(kept.get("rows", ()))})
