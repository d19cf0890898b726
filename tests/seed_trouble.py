"""Experiments that misbehave, for workers to import."""

from __future__ import annotations

import os
import time

from opwise.seeds.experiment import Findings
from opwise.seeds.place import Place


def fine(place: Place) -> Findings:
    return Findings("1", f"on {place.device}")


def otherwise(place: Place) -> Findings:
    return Findings("2", "not as published", shown=False)


def raising(place: Place) -> Findings:
    raise RuntimeError("boom [bold]not markup[/]\nsecond line")


def aborting(place: Place) -> Findings:
    os.abort()


def hanging(place: Place) -> Findings:
    time.sleep(600)
    raise AssertionError("nobody waits that long")
