"""Triton 1.0's comparison of programming models, block-level against thread-level, in the one way that needs no GPU: lines of code.

Counted are the files of each backend that are of one op alone, plans and launches included: what must be written for the speed that the
recorded runs show. Not a measure of difficulty; which lines they are matters more, and docs/seeds.md says that.
"""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

from opwise.ops import OPS
from opwise.provenance import PACKAGE, sources
from opwise.seeds.experiment import Findings
from opwise.seeds.place import Place

MODELS = {"triton_jit": "blocks, Triton", "numba_cuda": "threads, Numba", "cupy_raw": "threads, CUDA C++"}
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def lines(place: Place) -> Findings:
    counted = {model: {op: sum(code_lines(path) for path in _own(backend, op)) for op in OPS} for backend, model in MODELS.items()}
    totals = {model: sum(per_op.values()) for model, per_op in counted.items()}
    fewest = min(totals, key=lambda model: totals[model])
    simple = [op for op in OPS if op != "matmul"]
    without = {model: sum(per_op[op] for op in simple) for model, per_op in counted.items()}
    return Findings(
        ", ".join(f"{model} {n}" for model, n in totals.items()),
        f"fewest: {fewest}; without matmul, where threads are taught TMA and tensor cores by hand: "
        + ", ".join(f"{model} {n}" for model, n in without.items()),
        fewest == MODELS["triton_jit"],
        figures={f"{model}, {op}, lines": n for model, per_op in counted.items() for op, n in per_op.items()},
    )


def _own(backend: str, op: str) -> list[Path]:
    """Without the rungs of docs/kernels.md's ladders, which are for reading."""
    below = {path: path.relative_to(PACKAGE).parts for path in sources(backend, op)}
    mine = [p for p, parts in below.items() if parts[0] == "backends" and len(parts) > 2 and re.split(r"[_.]", parts[2])[0] == op]
    return [path for path in mine if not path.stem.endswith("ladder")]


def code_lines(path: Path) -> int:
    """Lines with code on them; comments, docstrings and blank lines left out."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        stripped = COMMENT.sub(lambda found: "\n" * found[0].count("\n"), text)
        return sum(bool(line.strip(" \t\\")) for line in stripped.splitlines())
    return python_lines(text)


def python_lines(source: str) -> int:
    """Of a module or a function: decorators and signatures count."""
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    held: set[int] = set()
    fresh = True  # at the start of a statement a string is a docstring
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in layout:
            fresh = fresh or token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        elif token.type == tokenize.STRING and fresh:
            continue
        else:
            held.update(range(token.start[0], token.end[0] + 1))
            fresh = False
    return len(held)
