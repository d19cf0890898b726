"""Triton's intermediate forms of a kernel, each line beside its source: TTIR, at block level; TTGIR, with layouts over the threads, where
Gluon begins; LLIR, LLVM's form for one thread.

MLIR writes a line's source as `loc(#loc7)`, defined elsewhere in the text through names and call sites; LLVM as `!dbg !7`, whose file is
that of its scope. For inlined code the innermost place is shown, as for PTX."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from opwise.inspecting.compilers import Compiled
from opwise.inspecting.listing import Line

FORMS = ("ttir", "ttgir", "llir")
PLACE = re.compile(r'"([^"]+)":(\d+):\d+')
DEFINED = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
USED = re.compile(r"\s*loc\((#loc\d*)\)$")
INLINE = re.compile(r'\s*loc\((?:"[^"]*"\(#loc\d*\)|callsite\([^)]*\))\)')  # of arguments, within a line
METADATA = re.compile(r"^(!\d+) = (?:distinct )?(!\w+\(.*\))$")
DEBUG = re.compile(r",? !dbg (!\d+)")


class NoForm(LookupError):
    """The kernel lacks this form; the message lists those it has."""


def listing(kernel: Compiled, form: str) -> list[Line]:
    """The listing of one of FORMS of the kernel. Raises NoForm."""
    if form not in kernel.forms:
        has = f"it has {', '.join(kernel.forms)} (Gluon begins with ttgir)" if kernel.forms else "it is Triton's alone"
        raise NoForm(f"{kernel.kernel} has no {form}: {has}")
    return list(_llvm(kernel.forms[form]) if form == "llir" else _mlir(kernel.forms[form]))


def _mlir(text: str) -> Iterator[Line]:
    defined = {found[1]: found[2] for line in text.splitlines() if (found := DEFINED.match(line))}
    for line in text.splitlines():
        if line.strip() and not DEFINED.match(line):
            used = USED.search(line)
            yield Line(INLINE.sub("", USED.sub("", line)), *(_place(defined, used[1]) if used else ("", 0)))


def _place(defined: Mapping[str, str], name: str) -> tuple[str, int]:
    """File and line; ("", 0) where the compiler knows none."""
    text = defined.get(name, "")
    if found := PLACE.match(text):
        return found[1], int(found[2])
    for inner in re.findall(r"#loc\d*", text):  # "name"(#loc1), callsite(#loc1 at #loc2)
        if (place := _place(defined, inner)) != ("", 0):
            return place
    return "", 0


def _llvm(text: str) -> Iterator[Line]:
    metadata = {found[1]: found[2] for line in text.splitlines() if (found := METADATA.match(line))}
    for line in text.splitlines():
        if line.strip() and not line.startswith(("!", ";")):
            used = DEBUG.search(line)
            number = _number(metadata.get(used[1], "")) if used and not line.startswith("define") else 0
            yield Line(DEBUG.sub("", line), _file(metadata, used[1]) if used and number else "", number)


def _number(location: str) -> int:
    found = re.search(r"line: (\d+)", location) if location.startswith("!DILocation") else None
    return int(found[1]) if found else 0


def _file(metadata: Mapping[str, str], name: str) -> str:
    """Of a location, a scope or a file itself."""
    text = metadata.get(name, "")
    if text.startswith("!DIFile"):
        parts = dict(re.findall(r'(filename|directory): "([^"]*)"', text))
        return f"{parts.get('directory', '')}/{parts.get('filename', '')}"
    onward = re.search(r"\bfile: (!\d+)", text) or re.search(r"\bscope: (!\d+)", text)
    return _file(metadata, onward[1]) if onward else ""
