"""Triton 1.0's comparison of block-level with thread-level programming, by the one figure that needs no GPU: lines of code.

Two counts. Alike: the textbook kernel of each op (the variant `plain`), the same algorithm in each model, with its device functions and
without its launch. In all: every file that a backend has for the op, plans and launches included, ladders excluded. The files differ in
scope, so the second count does not compare the models; docs/seeds.md explains the lines."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from opwise.ops import OPS
from opwise.provenance import PACKAGE
from opwise.seeds.experiment import Findings
from opwise.seeds.place import Place

BACKENDS = PACKAGE / "backends"
MODELS = {"blocks, Triton": ("triton_jit",), "threads, Numba": ("numba_cuda",), "threads, CUDA C++": ("cuda_src", "cupy_raw")}
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
CODE = (".py", ".cu", ".cuh")


def lines(place: Place) -> Findings:
    plain = {model: {op: plain_lines(model, op) for op in OPS} for model in MODELS}
    whole = {model: {op: sum(map(code_lines, files(model, op))) for op in OPS} for model in MODELS}
    shortest = [op for op in OPS if min(plain, key=lambda model: plain[model][op]) == next(iter(MODELS))]
    told = {"plain kernel": plain, "whole backend": whole}
    return Findings(
        "plain kernels of all ops: " + _totals(plain),
        f"none is shorter than Triton's for {', '.join(shortest) or 'no op'}; whole backends: {_totals(whole)}; without matmul: "
        + _totals({model: {op: n for op, n in per_op.items() if op != "matmul"} for model, per_op in whole.items()}),
        figures={
            f"{model}, {op}, {what}, lines": n for what, found in told.items() for model, per in found.items() for op, n in per.items()
        },
    )


def _totals(counted: dict[str, dict[str, int]]) -> str:
    return ", ".join(f"{model} {sum(per_op.values())}" for model, per_op in counted.items())


def files(model: str, op: str) -> Iterator[Path]:
    """The model's files for this op only, without the ladders of docs/kernels.md, which are for teaching."""
    for folder in (BACKENDS / name for name in MODELS[model]):
        for path in sorted(folder.rglob("*")):
            parts = path.relative_to(folder).parts
            if path.suffix in CODE and re.split(r"[_.]", parts[0])[0] == op and not any("ladder" in part for part in parts):
                yield path


def plain_lines(model: str, op: str) -> int:
    """Lines of the textbook kernel and the device functions of its file that it calls. Raises ValueError if there is no such kernel."""
    folder = BACKENDS / MODELS[model][0]
    if folder.name == "cuda_src":
        return code_lines(folder / "plain" / f"{op}.cu")
    path = next(p for p in (folder / op / "plain.py", folder / f"{op}.py") if p.exists())
    source = path.read_text(encoding="utf-8")
    known = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.decorator_list}
    wanted = [name for name, node in known.items() if name == "plain_kernel" or ast.unparse(node.decorator_list[0]) == "jit"]
    if not wanted:
        raise ValueError(f"{path} has no plain kernel: a function plain_kernel, or one under @jit, is looked for")
    for name in wanted:  # grows: what a kernel calls is looked at too
        called = {node.func.id for node in ast.walk(known[name]) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        wanted += [each for each in known if each in called and each not in wanted]
    return sum(python_lines("\n".join(_text(source, known[name]))) for name in wanted)


def _text(source: str, function: ast.FunctionDef) -> list[str]:
    return source.splitlines()[function.decorator_list[0].lineno - 1 : function.end_lineno]


def code_lines(path: Path) -> int:
    """Lines with code; comments, docstrings and blank lines are not counted."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        stripped = COMMENT.sub(lambda found: "\n" * found[0].count("\n"), text)
        return sum(bool(line.strip(" \t\\")) for line in stripped.splitlines())
    return python_lines(text)


def python_lines(source: str) -> int:
    """Lines of a module or a function; decorators and signatures count."""
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
