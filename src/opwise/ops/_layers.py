"""The set `layers`: shapes of each op in layers of published language models, in bfloat16.

Sizes are from the published configurations of GPT-2 small, Llama 3 8B and 70B, and Llama 2 13B: hidden size, feed-forward size, heads,
vocabulary. Rows are tokens: 1 or 16 in decoding, 256 or 2048 of a prompt.
"""

from __future__ import annotations

from dataclasses import replace

from opwise.ops.spec import over_dtypes

DTYPES = ("bfloat16",)
TOKENS = (1, 16, 256, 2048)
# (K, N) of a model's four products: queries, keys and values; attention output; feed-forward up; feed-forward down.
MATRICES = (
    *((768, 2304), (768, 768), (768, 3072), (3072, 768)),  # GPT-2 small
    *((4096, 6144), (4096, 4096), (4096, 14336), (14336, 4096)),  # Llama 3 8B
    *((5120, 15360), (5120, 5120), (5120, 13824), (13824, 5120)),  # Llama 2 13B
    *((8192, 10240), (8192, 8192), (8192, 28672), (28672, 8192)),  # Llama 3 70B
    *((4096, 32), (32, 4096)),  # a LoRA adapter of rank 32
)
FEED_FORWARD = (3072, 13824, 14336, 28672)
VOCABULARY = (50257, 128256)  # of GPT-2 (odd, so rows are not aligned to 16 bytes) and of Llama 3
# (rows, keys) of attention scores: all heads of one decoded token, and of a prompt.
ATTENTION = ((12, 1024), (32, 8192), (64, 32768), (12 * 1024, 1024), (32 * 2048, 2048))


PRODUCTS = tuple((m, k, n) for k, n in MATRICES for m in TOKENS)
ACTIVATIONS = tuple((m, n) for n in FEED_FORWARD for m in TOKENS)
ROWS = (*ATTENTION, *((m, n) for n in VOCABULARY for m in TOKENS))  # scores over keys, and logits

# Not in the ops' own files: a record holds a digest of those, and a change of this set must not make records outdated.
LAYERS = {
    op: over_dtypes(op, shapes, DTYPES)
    for op, shapes in {"square": ACTIVATIONS, "mean": ACTIVATIONS, "gelu": ACTIVATIONS, "softmax": ROWS, "matmul": PRODUCTS}.items()
}
# nn.Linear computes x @ w.t().
LAYERS["matmul"] += tuple(replace(w, layout="NT") for w in LAYERS["matmul"])
