"""An experiment and its outcome."""

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
    """Environment of a lane's worker. Triton is compiler or interpreter from its first import on, which torch's profiler or Dynamo may
    cause."""
    return {"TRITON_INTERPRET": str(int(device == "cpu" and lane != COMPILE))}


SHOWN, DIFFERS, NEEDS, FAILED, ELSEWHERE = "shown", "differs", "needs", "failed", "elsewhere"


@dataclass(frozen=True)
class Published:
    """The source's figures. `us`: the one that is compared; `gpu`: a key of gpus.GPUS; `work`: the bytes and flops that limit it.

    `ours`: no source gives it; this project noted it, and nothing is compared with it."""

    text: str = ""
    gpu: str = ""
    us: float | None = None
    work: Cost | None = None
    ours: bool = False


@dataclass(frozen=True)
class Experiment:
    """`run`: "module:function", taking a place.Place and returning Findings. `needs`: what a machine without a GPU lacks for it, "" if it
    runs there too, in `cpu_lane` and without a GPU time. `elsewhere`: the command that does it instead."""

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
    """An experiment function's result. `here`: the figure, in short; `found`: the finding, in a sentence; `shown`: whether the experiment
    showed what it should. `us`: the figure to compare with Published.us. `figures`: name with its unit -> value. `rows`: points of a plot.

    `tables`: title -> a profiler's table as printed. `files`: name -> text of a file that the source writes, a trace."""

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
    """One experiment as it is stored. `ratio`: published over here; `limits_ratio`: the same of the two limits, data sheet over measured.

    `status`: shown, differs (it ran with another result), needs, failed, elsewhere; for the last three `found` holds the reason. `files`
    are not stored with a run: `opwise seeds --keep` writes them."""

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
        """The inverse of `as_data`; unknown fields of a newer opwise are dropped."""
        kept = {name: data[name] for name in (f.name for f in fields(cls)) if name in data}
        return cls(**{**kept, "rows": tuple(kept.get("rows", ()))})
