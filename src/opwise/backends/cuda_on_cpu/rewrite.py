"""Rewrites preprocessed CUDA C++ to C++, where a header cannot do it:

    asm("fma.rn.f32 %0, %1, %2, %0;" : "+f"(c) : "f"(a), "f"(b));  ->  ::cpu::ptx::fma_rn_f32(c, float(a), float(b), c);
    __shared__ float sums[32];                                     ->  a reference into the block's shared memory, with redzones around it
    extern "C" __global__ void square(const float *x) {            ->  the same, and an entry in the table of kernels

An instruction that include/ptx.h lacks becomes a call that reports an error when it is reached. Line numbers are unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

INCLUDE = Path(__file__).with_name("include")
STRING = r'"(?:[^"\\\n]|\\.)*"'
TOKEN = re.compile(
    rf"(?P<string>{STRING}|'(?:[^'\\\n]|\\.)+')|(?P<marker>^#.*$)|(?P<asm>\b(?:asm|__asm__)\b)"
    r"|(?P<shared>(?:\bextern\s+)?\b__shared__\b)|(?P<kernel>\b__global__\b)|(?P<brace>[{}])",
    re.MULTILINE,
)
CONVERSIONS = {"r": "::cpu::r32", "l": "::cpu::r64", "h": "::cpu::r16", "f": "float", "d": "double", "n": ""}


class Unsupported(ValueError):
    """A construct that the stand-in lacks; the message quotes it."""


@cache
def instructions() -> frozenset[str]:
    """The names that include/ptx.h and include/tensor_core.h define in namespace ptx."""
    found: set[str] = set()
    for name in ("ptx.h", "tensor_core.h"):
        text = (INCLUDE / name).read_text(encoding="utf-8").partition("namespace ptx {")[2]
        found |= set(re.findall(r"^(?:template <class T> )?inline [\w:]+ (\w+)\(", text, re.MULTILINE))
        found |= set(re.findall(r"^OPWISE_MMA\((\w+)", text, re.MULTILINE))
    return frozenset(found)


def rewritten(text: str) -> str:
    """C++ for the preprocessed CUDA C++ `text`. Raises Unsupported."""
    return _Rewriting(text).result()


@dataclass
class _Rewriting:
    text: str
    at: int = 0
    out: list[str] = field(default_factory=list)
    scopes: list[bool] = field(default_factory=list)  # for each open brace: whether it opens a namespace or a linkage block
    kernels: list[str] = field(default_factory=list)

    def result(self) -> str:
        for found in iter(lambda: TOKEN.search(self.text, self.at), None):
            self.out.append(self.text[self.at : found.start()])
            self.at = found.end()
            if found["asm"]:
                self._asm(found.start())
            elif found["shared"]:
                self._shared(found[0].startswith("extern"), found.start())
            else:
                if found["kernel"]:
                    self._kernel(found.start())
                elif found["brace"]:
                    self._brace(found[0], found.start())
                self.out.append(found[0])
        self.out.append(self.text[self.at :])
        return "".join([*self.out, "\n", *self.kernels])

    def _brace(self, brace: str, start: int) -> None:
        if brace == "{":
            before = self.text[max(0, start - 200) : start]
            self.scopes.append(re.search(r"""(\bnamespace(\s+[\w:]+)?|\bextern\s*"C(\+\+)?")\s*$""", before) is not None)
        elif self.scopes:
            self.scopes.pop()

    def _keep_lines(self, start: int) -> str:
        return "\n" * self.text.count("\n", start, self.at)

    # -- asm -------------------------------------------------------------------------------------------------------------------------

    def _asm(self, start: int) -> None:
        opening = self.text.index("(", self.at)
        end = _closing(self.text, opening)
        self.at = end
        template, *operands = _split(self.text[opening + 1 : end - 1], ":")
        code = "".join(part[1:-1] for part in re.findall(STRING, template)).replace(r"\n", " ").replace(r"\t", " ")
        named = [one for section in operands[:2] for one in _split(section, ",") if one.strip()]
        self.out.append(_call(code.strip(), [_operand(one) for one in named]) + self._keep_lines(start))

    # -- shared memory ---------------------------------------------------------------------------------------------------------------

    def _shared(self, external: bool, start: int) -> None:
        end = self.text.index(";", self.at)
        declared = re.sub(r"\s+", " ", self.text[self.at : end]).strip()
        declared = re.sub(r"^(extern|static|volatile) ", "", re.sub(r"^(__align__|alignas)\([^)]*\) ?", "", declared))
        self.at = end + 1
        first, *others = _split(declared, ",")
        found = re.fullmatch(r"(.+?[\s*&>])(\w+)\s*((?:\[[^][]*\]\s*)*)", first.strip())
        if found is None or "=" in declared:
            raise Unsupported(f"__shared__ {declared}: a type and names without initialisers are taken")
        made, kind = [], found[1].strip()
        for one in (first.strip()[len(found[1]) :], *others):
            name, bounds = (part.strip() for part in re.match(r"\s*(\w+)\s*(.*)", one, re.DOTALL).groups())  # type: ignore[union-attr]
            if not external:
                whole = f"::cpu::Array<{kind}{''.join(_bounds(bounds))}>"
                made.append(f'static const char key_{name} = 0; {whole} &{name} = ::cpu::shared<{whole}>(&key_{name}, "{name}");')
            elif all(self.scopes):
                made.append(f"static const ::cpu::DynamicShared<{kind}> {name};")
            else:
                made.append(f"{kind} *const {name} = ::cpu::DynamicShared<{kind}>();")
        self.out.append(" ".join(made) + self._keep_lines(start))

    # -- kernels ---------------------------------------------------------------------------------------------------------------------

    def _kernel(self, start: int) -> None:
        """Registers an extern "C" kernel definition by a line at the end of the text."""
        if not re.search(r'extern\s*"C"\s*$', self.text[max(0, start - 40) : start]):
            return
        bound, cluster, at = "1024", False, self.at
        while found := re.compile(r"\s*(\w+)\s*(\(?)").match(self.text, at):
            at = found.end()
            if not found[2]:
                continue
            closing = _closing(self.text, at - 1)
            if found[1] == "__launch_bounds__":
                bound = _split(self.text[at : closing - 1], ",")[0].strip()
            elif found[1] == "__cluster_dims__":
                cluster = True
            else:
                if self.text[closing:].lstrip().startswith("{"):
                    self.kernels.append(f'static const ::cpu::Registered kernel_{found[1]}("{found[1]}", {found[1]}, {bound}, '
                                        f"{str(cluster).lower()});\n")  # fmt: skip
                return
            at = closing


def _bounds(bounds: str) -> Iterator[str]:
    for bound in re.findall(r"\[([^][]*)\]", bounds):
        yield f", ({bound})"


def _operand(text: str) -> tuple[str, str]:
    """(constraint, expression) of `"=r"(x)`."""
    found = re.fullmatch(rf"\s*({STRING})\s*\((.*)\)\s*", text, re.DOTALL)
    if found is None:
        raise Unsupported(f"the operand {text.strip()!r} of an asm")
    return found[1][1:-1], found[2]


def _call(code: str, operands: list[tuple[str, str]]) -> str:
    """The statement for one instruction; (void)0 for an empty one, which is only a compiler barrier."""
    if not code:
        return "(void)0"
    mnemonic, _, rest = code.removesuffix(";").partition(" ")
    name = re.sub(r"\W+", "_", mnemonic)
    given = []
    for token in re.findall(r"%%?\w+|\b\d+\b", rest):
        if token.startswith("%%"):
            given.append(f"::cpu::ptx::sreg_{token[2:]}()")
        elif token.startswith("%"):
            constraint, expression = operands[int(token[1:])]
            writes = constraint[0] in "=+"
            given.append(expression if writes else f"{CONVERSIONS[constraint[-1]]}({expression})")
        else:
            given.append(token)
    registers = {f"sreg_{token}" for token in re.findall(r"%%(\w+)", rest)}
    if ";" in code.removesuffix(";") or not {name, *registers} <= instructions():
        quoted = code.replace('"', "'").replace("%%", "%")
        return f'::cpu::unsupported("{quoted}")'
    return f"::cpu::ptx::{name}({', '.join(given)})"


def _closing(text: str, opening: int) -> int:
    """The index after the parenthesis that closes the one at `opening`. Raises Unsupported if there is none."""
    depth = 0
    for found in re.compile(rf"{STRING}|[()]").finditer(text, opening):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    raise Unsupported(f"a parenthesis that nothing closes: {text[opening : opening + 60]!r}")


def _split(text: str, mark: str) -> list[str]:
    """Splits at the marks that are outside of strings and brackets."""
    parts, depth, begin = [], 0, 0
    for found in re.finditer(rf"{STRING}|[][(){{}}]|{mark}", text):
        if found[0] in "([{":
            depth += 1
        elif found[0] in ")]}":
            depth -= 1
        elif found[0] == mark and depth == 0:
            parts.append(text[begin : found.start()])
            begin = found.end()
    return [*parts, text[begin:]]
