"""Whose the roofs are, and what share of the data sheet."""

from __future__ import annotations

from invoking import invoke

from opwise.report.roofs import DATA_SHEETS, UNITS, whose

LIMITS = {"copy_4096_bytes_gb_per_s": 2000.0, "copy_268435456_bytes_gb_per_s": 3016.8, "peak_tensor_bfloat16_tflop_per_s": 791.52,
          "capped_peak_tensor_bfloat16_tflop_per_s": 764.9, "peak_fma_tflop_per_s": 66.9}  # fmt: skip


def test_each_roof_says_whose_it_is_and_its_share_of_the_data_sheet() -> None:
    assert whose(LIMITS, "NVIDIA H100 80GB HBM3") == (
        "SOL is against what ran on this GPU: copying 256 MiB 3017 GB/s (0.90 of the data sheet); cuBLAS's burst in bfloat16 792 TFLOP/s "
        "(0.80 of the data sheet), power-capped 765; float32 (chains of FMA) 67 TFLOP/s (1.00 of the data sheet)."
    )
    assert "data sheet" not in whose(LIMITS, "NVIDIA Toy")
    assert whose({}, "NVIDIA H200") == ""
    assert all(sheet.keys() == {*UNITS, "memory"} for sheet in DATA_SHEETS.values())


def test_show_prints_it_under_the_tables() -> None:
    assert "cuBLAS's burst in bfloat16" in " ".join(invoke("show", "core-4e5a3ad").output.split())
