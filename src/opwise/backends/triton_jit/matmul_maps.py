"""Tensor maps that round float32 to TF32 as they copy: how Triton is told to encode them."""

from __future__ import annotations

from typing import Any

import triton
from triton.tools.tensor_descriptor import TensorDescriptor

# Triton 3.7 has a word for maps that round to TF32 as they copy; before, it encodes them with what the compiled kernel's metadata says.
ROUNDS = "round_f32_to_tf32" in TensorDescriptor.__dataclass_fields__
TFLOAT32 = 11  # cuda.h's CU_TENSOR_MAP_DATA_TYPE_TFLOAT32; FLOAT32 is 7


def round_maps(compiled: Any, count: int, factors: int = 2) -> None:
    """Makes the first `factors` of `count` maps round. Raises RuntimeError where this Triton keeps elsewhere what it encodes them with."""
    maps = getattr(compiled.metadata, "tensordesc_meta", None)
    if not maps or len(maps) != count or any("elem_type" not in each for each in maps):
        raise RuntimeError(
            f"Triton {triton.__version__} does not say how it encodes tensor maps, and would cut TF32 factors instead of rounding them: "
            "pip install 'triton>=3.6'"
        )
    for each in maps[:factors]:
        each["elem_type"] = TFLOAT32
