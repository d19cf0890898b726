"""Sizes of the block: those of three known models, and one that a stand-in can run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from opwise.ops.spec import Workload

DTYPE = "bfloat16"
LONGEST = 1024  # tokens of one sequence: more tokens are more sequences, so that scores grow with the tokens and not with their square
# hidden, ff, heads
MODELS: Mapping[str, tuple[int, int, int]] = {
    "8b": (4096, 14336, 32),
    "gpt2": (768, 3072, 12),
    "70b": (8192, 28672, 64),
    "tiny": (64, 128, 2),
}
DEFAULT, TINY = "8b", "tiny"
TOKENS, TINY_TOKENS = 4096, 16


@dataclass(frozen=True)
class Sizes:
    """A block of `tokens` rows: `sequences` sequences of `length` tokens each; attention is within a sequence."""

    model: str
    hidden: int
    ff: int
    heads: int
    tokens: int

    @classmethod
    def of(cls, model: str, tokens: int) -> Sizes:
        """Raises ValueError for an unknown model, and if tokens are not a whole number of sequences."""
        if model not in MODELS:
            raise ValueError(f"model {model!r} is unknown: known are {', '.join(MODELS)}")
        if tokens < 1 or (tokens > LONGEST and tokens % LONGEST):
            raise ValueError(f"{tokens} tokens: 1 to {LONGEST}, or a multiple of {LONGEST}, are taken: a sequence has at most {LONGEST}")
        return cls(model, *MODELS[model], tokens)

    @property
    def length(self) -> int:
        return min(self.tokens, LONGEST)

    @property
    def sequences(self) -> int:
        return self.tokens // self.length

    @property
    def head(self) -> int:
        """Columns of one head."""
        return self.hidden // self.heads

    @property
    def scale(self) -> float:
        """The factor on the scores, 1 / sqrt(head)."""
        return 1.0 / math.sqrt(self.head)

    @property
    def workloads(self) -> dict[str, Workload]:
        """Workloads of the steps that an op of the suite computes."""
        products = {"qkv": (self.hidden, 3 * self.hidden), "out": (self.hidden, self.hidden), "up": (self.hidden, self.ff),
                    "down": (self.ff, self.hidden)}  # fmt: skip
        found = {name: Workload("matmul", (self.tokens, k, n), DTYPE) for name, (k, n) in products.items()}
        scores = (self.sequences * self.heads * self.length, self.length)
        return found | {"softmax": Workload("softmax", scores, DTYPE), "gelu": Workload("gelu", (self.tokens, self.ff), DTYPE)}

    def __str__(self) -> str:
        of = f"{self.sequences} sequences of {self.length}" if self.sequences > 1 else "one sequence"
        return f"block of {self.model}, {self.tokens} tokens ({of}), hidden {self.hidden}, ff {self.ff}, {self.heads} heads, {DTYPE}"
