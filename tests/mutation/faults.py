"""What a fault is, and how it is planted: exact text in a file of the package, its replacement, and what it stands for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "opwise"

KINDS = {
    "bound": "a loop, a grid or a test that ends one too early or too late",
    "mask": "an access without its mask, or with another one's, or with the wrong value outside",
    "index": "the wrong element: swapped strides, a wrong offset, a lane's or a tile's place",
    "type": "too few bits: a narrow accumulator, an intermediate or final rounding that is not the one to make",
    "range": "arithmetic that overflows, cancels or divides 0 by 0: a missing maximum or rescaling",
    "constant": "a factor or a constant that is not the formula's",
    "reduction": "a sum or a maximum that leaves partial results out, or counts them twice",
    "state": "something left behind for the next launch, or taken from the last one",
    "host": "the wrong kernel, grid, argument, stream or buffer",
    "barrier": "a race: a missing barrier, fence or wait",
}


class Stale(LookupError):
    """The text that a fault replaces is not in today's sources exactly once."""


@dataclass(frozen=True)
class Fault:
    """A mistake that the author of a kernel could make, in `file`, a path below src/opwise: `old` becomes `new`.

    `variant` and `dtypes` narrow the implementation and the dtypes that are tried; no dtypes means all of the op's. Where only a GPU can
    show it, `gpu_only` says why; where nothing here can, `survives` says why, and the fault is reported apart from the others.
    """

    name: str
    op: str
    kind: str
    file: str
    old: str
    new: str
    variant: str = ""
    dtypes: tuple[str, ...] = ()
    gpu_only: str = ""
    survives: str = ""

    def source(self, package: Path = PACKAGE) -> str:
        """The file's text with the fault in it. Raises Stale where `old` is not there exactly once."""
        text = (package / self.file).read_text(encoding="utf-8")
        found = text.count(self.old)
        if found != 1:
            raise Stale(f"{self.op} {self.name!r}: {self.file} holds the text to replace {found} times, once is needed: {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Mutant:
    """A fault in a backend; the CUDA C++ sources are two backends', so their faults are planted once in each."""

    backend: str
    fault: Fault

    def __str__(self) -> str:
        variant = f":{self.fault.variant}" if self.fault.variant else ""
        return f"{self.backend}/{self.fault.op}{variant} {self.fault.name}"


@dataclass(frozen=True)
class Outcome:
    """What came of a trial. `verdict`: noticed, survived, absent (nothing here runs it) or nonsense. `by`: the test that noticed; `reason`:
    what it said."""

    verdict: str
    by: str = ""
    reason: str = ""


def copied(folder: Path, fault: Fault | None) -> Path:
    """A copy of the package below `folder`, with the fault in it where one is given; what to put on PYTHONPATH."""
    target = folder / "src" / "opwise"
    shutil.copytree(PACKAGE, target)  # with Python's compiled files, which are valid for sources of the same time and size
    if fault is not None:
        (target / fault.file).write_text(fault.source(), encoding="utf-8")
    return folder / "src"


def matching(mutants: Iterator[Mutant] | tuple[Mutant, ...], backend: str = "", part: str = "") -> list[Mutant]:
    return [m for m in mutants if backend in ("", m.backend) and part in str(m)]
