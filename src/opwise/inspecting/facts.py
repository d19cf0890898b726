"""Facts of compiled kernels, from their cubins: cuobjdump gives registers, stack and shared memory, nvdisasm the instructions.

All kernels of an architecture are disassembled in one call: nvdisasm takes 0.3 s to start, and as long again for 20 000 instructions."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from opwise.backends.cubin import INSTRUCTION_BYTES, code
from opwise.inspecting.classes import count
from opwise.inspecting.tools import output

INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?\S+\s+)?([A-Z][A-Z0-9_]*[A-Z0-9_.]*)", re.MULTILINE)
USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)(.*)")


@dataclass(frozen=True)
class Facts:
    """Facts of one kernel: registers per thread, bytes of stack per thread (spills and arrays that did not fit registers), bytes of static
    shared memory per block, machine instructions with the NOPs that fill the section, and instructions by class and by width
    (classes.Counts)."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    instructions: int
    classes: Mapping[str, int]
    accesses: Mapping[str, Mapping[int, int]]

    @property
    def double(self) -> int:
        """Number of double-precision instructions."""
        return self.classes.get("double", 0)

    @property
    def local(self) -> int:
        """Number of loads and stores of the stack."""
        return sum(sum(widths.values()) for space, widths in self.accesses.items() if space.startswith("local"))


def facts(cubins: Sequence[bytes], arch: str) -> list[dict[str, Facts]]:
    """Of each cubin, kernel -> Facts. `arch` as "sm_90". Raises ToolMissing, RuntimeError if a tool fails, ValueError for no cubin.

    A subroutine, such as the slow path of a division in Numba's output, counts for every kernel of its cubin."""
    codes = [code(cubin) for cubin in cubins]
    with ThreadPoolExecutor(4) as pool:
        usages = list(pool.map(_usage, cubins))
    texts: list[tuple[int, str, bytes]] = []
    for i, (sections, usage) in enumerate(zip(codes, usages, strict=True)):
        called = b"".join(text for name, text in sections.items() if name not in usage)
        texts += [(i, name, sections[name] + called) for name in usage]
    found: list[dict[str, Facts]] = [{} for _ in cubins]
    for (i, kernel, text), opcodes in zip(texts, _opcodes([text for *_, text in texts], arch), strict=True):
        counts = count(opcodes)
        found[i][kernel] = Facts(*usages[i][kernel], len(text) // INSTRUCTION_BYTES, counts.classes, counts.accesses)
    return found


def whole(cubin: bytes) -> bytes:
    """The cubin padded to a multiple of 8 bytes: CuPy drops the last zero byte of NVRTC's output, which the driver accepts and the tools
    reject."""
    return cubin + b"\0" * (-len(cubin) % 8)


def _usage(cubin: bytes) -> dict[str, tuple[int, int, int]]:
    """Kernel -> registers, stack, static shared memory. What has no bank of parameters, CONSTANT[0], is a subroutine and left out."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(whole(cubin))
        file.flush()
        said = output("cuobjdump", "--dump-resource-usage", file.name)
    found = USAGE.findall(said)
    return {name: (int(regs), int(stack), int(shared)) for name, regs, stack, shared, rest in found if "CONSTANT[0]" in rest}


def _opcodes(texts: Sequence[bytes], arch: str) -> Iterable[list[str]]:
    """The opcodes of each text, in order. Raises RuntimeError where nvdisasm skips an instruction."""
    if not texts:
        return []
    with tempfile.TemporaryDirectory(prefix="opwise-inspect-") as folder:
        raw = Path(folder, "code.bin")
        raw.write_bytes(b"".join(texts))
        said = output("nvdisasm", "--binary", _binary_of(arch), raw)
    opcodes = {int(offset, 16): opcode for offset, opcode in INSTRUCTION.findall(said)}
    found, at = [], 0
    for text in texts:
        try:
            found.append([opcodes[offset] for offset in range(at, at + len(text), INSTRUCTION_BYTES)])
        except KeyError as missing:
            raise RuntimeError(f"nvdisasm tells nothing of the instruction at {missing} for {arch}") from missing
        at += len(text)
    return found


def _binary_of(arch: str) -> str:
    """As nvdisasm names it, with the instructions that this architecture alone has: SM90a."""
    number = arch.removeprefix("sm_").rstrip("af")
    return f"SM{number}a" if int(number) >= 90 else f"SM{number}"
