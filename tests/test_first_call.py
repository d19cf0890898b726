"""What the first call is measured with: caches that are empty in one process and full in the next."""

from __future__ import annotations

import importlib.util
import runpy
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

import pytest

from opwise.ops import OPS
from opwise.runner import first_call
from opwise.runner.first_call import cold_then_cached, first_calls
from opwise.runner.jobs import Entry
from opwise.runner.supervisor import WorkerLost

IMPORT = """
import importlib.util, pathlib, sys
here = pathlib.Path(__file__).parent
sys.path.insert(0, str(here))
bytecode = pathlib.Path(importlib.util.cache_from_source(str(here / "imported.py")))
before = bytecode.exists()
import imported
print(before, bytecode.exists(), file=open(here / "seen.txt", "a"))
"""


def test_bytecode_is_among_the_caches_whatever_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process compiles a module's source and the second finds that; beside the source there is nothing."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "imported.py").write_text("x = 1\n")
    (tmp_path / "script.py").write_text(IMPORT)
    assert cold_then_cached("cpu", partial(runpy.run_path, str(tmp_path / "script.py")), "start", None) == (None, None)
    assert (tmp_path / "seen.txt").read_text().splitlines() == ["False True", "True True"]
    assert not Path(importlib.util.cache_from_source(str(tmp_path / "imported.py"))).exists()


class Played:
    """A worker that takes a while to answer, or is lost; with empty caches it waits for the others. when: (backend, has it caches?, begun?)
    in the order in which that was."""

    when: ClassVar[list[tuple[str, bool, bool]]] = []
    together: ClassVar[threading.Barrier]

    def __init__(self, device: str, setup: object, environment: Mapping[str, str]) -> None:
        self.folder = Path(environment["TRITON_CACHE_DIR"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, kind: str, payload: tuple[str, tuple[object, ...]], patience: object) -> dict[str, float]:
        backend, cached = payload[0], self.folder.exists()
        self.when.append((backend, cached, True))
        if cached:
            time.sleep(0.05)
        else:
            self.together.wait(60)  # broken, and the test with it, unless all are at it at once
        self.folder.mkdir(exist_ok=True)
        self.when.append((backend, cached, False))
        if backend == "lost":
            raise WorkerLost("gone", (backend, "square"))
        return {"square": 0.1 if cached else 2.0}


def test_full_caches_are_measured_when_nothing_is_compiled_any_more_and_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_call, "Worker", Played)
    monkeypatch.setattr(Played, "when", [])
    names = ("one", "lost", "two", "three")
    monkeypatch.setattr(Played, "together", threading.Barrier(len(names)), raising=False)
    catalogue = {name: Entry(name, variants={op: {"": ""} for op in OPS}) for name in names}
    assert first_calls(catalogue, "cpu") == {(name, "square"): (2.0, 0.1) for name in names if name != "lost"}
    cold, cached = Played.when[:8], Played.when[8:]
    assert [begun for *_, begun in cold[:4]] == [True] * 4, "at once"
    assert not any(full for _, full, _ in cold)
    assert cached == [(name, True, begun) for name in ("one", "two", "three") for begun in (True, False)]
