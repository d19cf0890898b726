"""The roofs of a run: which ones, of which GPU, and their share of the vendor's data sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from opwise.record import read_extra

# NVIDIA's data sheets, of the SXM modules: dense TFLOP/s of a unit, GB/s of memory. A GPU that is not here has no such shares.
DATA_SHEETS: Mapping[str, Mapping[str, float]] = {
    "NVIDIA A100-SXM4-80GB": {"fma": 19.5, "tensor_tfloat32": 156.0, "tensor_float16": 312.0, "tensor_bfloat16": 312.0, "memory": 2039.0},
    "NVIDIA H100 80GB HBM3": {"fma": 66.9, "tensor_tfloat32": 494.7, "tensor_float16": 989.4, "tensor_bfloat16": 989.4, "memory": 3352.0},
    "NVIDIA H200": {"fma": 66.9, "tensor_tfloat32": 494.7, "tensor_float16": 989.4, "tensor_bfloat16": 989.4, "memory": 4800.0},
}
UNITS = {"tensor_bfloat16": "bfloat16", "tensor_float16": "float16", "tensor_tfloat32": "TF32", "fma": "float32 (chains of FMA)"}
MOVES = {"copy": "copying", "read": "reading", "write": "writing"}


def roofs_of(path: Path) -> dict[str, float]:
    """Roofs measured in a run: none for a stopped run, those of each part for a resumed one. Raises what record.read raises."""
    lines = [line.get("limits") for line in read_extra(path, "limits")]
    return {str(k): float(v) for found in lines if isinstance(found, dict) for k, v in found.items() if _is_number(v)}


def _mib(name: str) -> str:
    """The bytes of copy_67108864_bytes_gb_per_s, both ways together."""
    size = int(name.split("_")[1]) / 2**20
    return f"{size:.0f} MiB" if size >= 1 else f"{size * 1024:.2g} KiB"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def whose(limits: Mapping[str, float], device: str) -> str:
    """One paragraph, "" for a run without roofs. limits: as Roofs.as_dict names them, for TFLOP/s and GB/s."""
    sheet = DATA_SHEETS.get(device, {})

    def share(value: float, name: str) -> str:
        return f" ({value / sheet[name]:.2f} of the data sheet)" if name in sheet else ""

    parts = []
    for kind, text in MOVES.items():
        if found := [(v, name) for name, v in limits.items() if name.startswith(f"{kind}_") and name.endswith("_gb_per_s")]:
            fastest, name = max(found)
            parts.append(f"{text} {_mib(name)} {fastest:.0f} GB/s{share(fastest, 'memory')}")
    for unit, text in UNITS.items():
        if (peak := limits.get(f"peak_{unit}_tflop_per_s")) is not None:
            capped = limits.get(f"capped_peak_{unit}_tflop_per_s")
            under = f", power-capped {capped:.0f}" if capped is not None else ""
            by = "" if unit == "fma" else "cuBLAS's burst in "
            parts.append(f"{by}{text} {peak:.0f} TFLOP/s{share(peak, unit)}{under}")
    return f"SOL is against what ran on this GPU: {'; '.join(parts)}." if parts else ""
