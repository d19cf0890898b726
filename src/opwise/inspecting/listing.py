"""SASS and PTX of one kernel, each line beside the source line that the compiler gives for it."""

from __future__ import annotations

import linecache
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from opwise.inspecting.compilers import Compiled
from opwise.inspecting.facts import whole
from opwise.inspecting.tools import output

SECTION = re.compile(r"^\.text\.(\S+):$")
SOURCE = re.compile(r'//## File "([^"]+)", line (\d+)')
SASS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;?$")
LABEL = re.compile(r"^\.L_x_\d+:$")
FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', re.MULTILINE)
LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")


@dataclass(frozen=True)
class Line:
    """An instruction or a label, and its source: ("", 0) if the compiler gives none."""

    text: str
    path: str = ""
    number: int = 0

    @property
    def source(self) -> str:
        """ "softmax.py:65 row = tl.program_id(0)"; without the text if the file is missing here."""
        if not self.number:
            return ""
        return f"{Path(self.path).name}:{self.number}  {linecache.getline(self.path, self.number).strip()}".rstrip()


def sass(kernel: Compiled) -> list[Line]:
    """The kernel's machine code, followed by subroutines it may call. Raises ToolMissing, RuntimeError if nvdisasm fails."""
    sections = dict(_sections(_disassembled(kernel.cubin).splitlines()))
    entries = set(re.findall(r"\.entry\s+([\w$]+)", kernel.ptx))
    own = sections.pop(kernel.symbol, [])
    called = [line for name, lines in sections.items() if name not in entries for line in (Line(f"{name}:"), *lines)]
    return own + called


def ptx(kernel: Compiled) -> list[Line]:
    """The kernel's PTX from its .entry to the closing brace, without line directives."""
    files = dict(FILE.findall(kernel.ptx))
    found: list[Line] = []
    path, number, inside = "", 0, False
    for text in kernel.ptx.splitlines():
        inside = inside or re.search(rf"\.entry\s+{re.escape(kernel.symbol)}\b", text) is not None
        if not inside:
            continue
        located = LOC.match(text)
        if located:
            path, number = files.get(located[1], ""), int(located[2])
        elif text.strip():
            found.append(Line(text.expandtabs(4).rstrip(), path, number))
        if text.startswith("}"):
            break
    return found


def beside(lines: Iterable[Line], width: int = 72) -> Iterator[str]:
    """Text to print: each source line stands beside the first instruction that comes from it."""
    before = ("", 0)
    for line in lines:
        shown = line.source if (line.path, line.number) != before else ""
        before = (line.path, line.number)
        yield f"{line.text:<{width}}  {shown}".rstrip() if shown else line.text


@cache
def _disassembled(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(whole(cubin))
        file.flush()
        return output("nvdisasm", "--print-code", "--print-line-info", file.name)


def _sections(lines: Iterable[str]) -> Iterator[tuple[str, list[Line]]]:
    name, found = "", list[Line]()
    path, number = "", 0
    for text in lines:
        if section := SECTION.match(text):
            if name:
                yield name, found
            name, found, path, number = section[1], [], "", 0
        elif source := SOURCE.search(text):
            path, number = source[1], int(source[2])
        elif instruction := SASS.match(text):
            found.append(Line(f"    {instruction[1]}", path, number))
        elif LABEL.match(text):
            found.append(Line(text, path, number))
    if name:
        yield name, found
