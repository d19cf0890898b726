"""What asv asked for, as the plugin asv_inplace.py wrote it down: which cells, how carefully, and where earlier ones are kept.

Without the plugin (a benchmark that is run by hand) everything is asked for, and nothing is carried over.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from benchmarks._parameters import ARCHITECTURES, BACKENDS, PRODUCT_DTYPES, SHAPES

VARIABLE = "OPWISE_HISTORY"  # the path of the file
Key = tuple[str, ...]


@dataclass(frozen=True)
class Order:
    """timed, bits: (op, backend, shape, dtype); compiled: (op, backend, dtype, arch). quick: one shape an op is enough. store: the folder
    of earlier commits' cells, None where all is to be measured. progress: a file whose lines asv shows while it waits."""

    timed: tuple[Key, ...]
    compiled: tuple[Key, ...]
    commit: str = ""
    quick: bool = False
    store: Path | None = None
    progress: Path | None = None
    bits: tuple[Key, ...] = ()

    @classmethod
    def given(cls) -> Order:
        path = os.environ.get(VARIABLE)
        if not path:
            run = tuple((op, b, s, d) for op, shapes in SHAPES.items() for b, s, d in product(BACKENDS, shapes, PRODUCT_DTYPES))
            return cls(run, tuple(product(SHAPES, BACKENDS, PRODUCT_DTYPES, ARCHITECTURES)), bits=run)
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        timed, compiled, bits = (tuple(map(tuple, found[name])) for name in ("timed", "compiled", "bits"))
        store, progress = (Path(found[name]) if found[name] else None for name in ("store", "progress"))
        return cls(timed, compiled, found["commit"], found["quick"], store, progress, bits)

    def say(self, text: str) -> None:
        if self.progress is None:
            sys.stderr.write(text + "\n")
            return
        with self.progress.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def counting(say: Callable[[str], None], what: str, of: int, every_s: float = 5.0) -> Callable[[], None]:
    """Call it after each of so many steps: it says now and then how far that is, and about how long the rest takes."""
    began = last = time.monotonic()
    done = 0

    def step() -> None:
        nonlocal last, done
        done += 1
        now = time.monotonic()
        if done < of and now - last >= every_s:
            last = now
            say(f"{what}: {done} of {of}, about {(now - began) / done * (of - done):.0f} s left")

    return step
