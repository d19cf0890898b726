"""Classes of machine instructions, by execution unit, from the opcode as nvdisasm writes it ("LDG.E.128.CONSTANT").

The names are those of the instruction set tables in NVIDIA's CUDA Binary Utilities, Turing to Blackwell."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

# Class -> the opcodes in front of the first dot. DOUBLE comes before all: a conversion to float64 is a double-precision instruction.
CLASSES: dict[str, re.Pattern[str]] = {
    "tensor": re.compile(r"(UTC)?[HIBQO]G?MMA"),
    "fma": re.compile(r"FFMA2?|FFMA32I"),
    "special": re.compile(r"MUFU"),
    "float": re.compile(r"F(ADD|MUL|MNMX|SEL|SETP|SET|CHK|SWZADD|CMP)\w*"),
    "half": re.compile(r"H(FMA|ADD|MUL|MNMX|SETP|SET)2\w*"),
    "convert": re.compile(r"(F2F|F2FP|F2I|F2IP|I2F|I2FP|I2I|I2IP|FRND)"),
    "load": re.compile(r"LD|LDG|LDS|LDL|LDSM"),
    "store": re.compile(r"ST|STG|STS|STL|STSM"),
    "async": re.compile(r"LDGSTS|UBLK\w+|UTMA\w+"),
    "constant": re.compile(r"U?LDCU?"),
    "atomic": re.compile(r"ATOM\w*|REDG?|REDAS|SUATOM|SURED"),
    "warp": re.compile(r"SHFL|U?VOTEU?|MATCH|CREDUX|U?REDUX|ELECT|UVOTEU"),
    "barrier": re.compile(r"BAR|UCGABAR\w*|SYNCS|UTCBAR|MEMBAR|FENCE|\w*ERRBAR|\w*DEPBAR|WARP\w*|ARRIVES|NANOSLEEP|U?CCTL\w*|ACQBULK"),
    "control": re.compile(r"BRA|BRX|JMP|JMX|EXIT|CALL|RET|BSSY|BSYNC|BREAK|BPT|BMOV|KILL|YIELD|PREEXIT|RPCMOV|NOP"),
}  # fmt: skip
DOUBLE = re.compile(r"D(ADD|FMA|MUL|SETP|SET|MNMX|MMA|SEL)")
OTHER = "integer"  # address arithmetic, predicates, moves: whatever has no class of its own
NAMES = ("tensor", "fma", "float", "half", "special", "double", *list(CLASSES)[5:], OTHER)

SPACES = {"LDG": "global load", "LD": "generic load", "LDS": "shared load", "LDSM": "shared load", "LDL": "local load",
          "STG": "global store", "ST": "generic store", "STS": "shared store", "STSM": "shared store", "STL": "local store",
          "LDGSTS": "async copy"}  # fmt: skip
WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
MATRICES = {"2": 8, "4": 16}  # of LDSM and STSM: as many 8x8 matrices, of each a lane has 4 bytes


@dataclass
class Counts:
    """`classes`: class -> instructions. `accesses`: space -> bytes a thread -> instructions; bulk copies (TMA) have no width."""

    classes: Counter[str] = field(default_factory=Counter)
    accesses: dict[str, Counter[int]] = field(default_factory=dict)


def count(opcodes: Iterable[str]) -> Counts:
    found = Counts()
    for opcode, times in Counter(opcodes).items():
        found.classes[class_of(opcode)] += times
        space = SPACES.get(opcode.split(".")[0])
        if space is not None:
            found.accesses.setdefault(space, Counter())[width_of(opcode)] += times
    return found


def class_of(opcode: str) -> str:
    base, *modifiers = opcode.split(".")
    if DOUBLE.fullmatch(base) or any(m == "F64" or m.endswith("64H") for m in modifiers):  # MUFU.RCP64H: the seed of a double's 1/x
        return "double"
    return next((name for name, pattern in CLASSES.items() if pattern.fullmatch(base)), OTHER)


def width_of(opcode: str) -> int:
    """Bytes that a thread loads or stores by this instruction."""
    base, *modifiers = opcode.split(".")
    widths = MATRICES if base in ("LDSM", "STSM") else WIDTHS
    return next((widths[m] for m in modifiers if m in widths), 4)
