"""A picture of one column as an SVG or PNG file, by matplotlib: as wide as a page on a phone can show without small letters."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opwise.report.html import MissingExtra

FORMATS = (".svg", ".png")
INCHES = 5.4
COLOURS = ("#4477aa", "#cc3311", "#228833", "#aa3377")  # told apart by the colour-blind too, and white letters show on them
GREY = "#777777"


@contextmanager
def drawn(path: Path, height: float) -> Iterator[Any]:
    """An empty figure of so many inches, written at the end. Raises MissingExtra, OSError."""
    try:
        matplotlib, canvas = importlib.import_module("matplotlib"), importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise MissingExtra("--plot needs matplotlib, which is not installed: pip install 'opwise[report]'") from error
    with matplotlib.rc_context({"svg.hashsalt": "opwise", "font.size": 8}):  # a fixed salt: the same run gives the same file
        figure = canvas.Figure(figsize=(INCHES, height), layout="constrained")
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)
