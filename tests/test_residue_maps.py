"""The tensor maps of a matrix whose rows begin anywhere, one a residue class of the row number."""

from __future__ import annotations

import pytest

from opwise.backends.cuda_src.common import tensor_maps
from opwise.backends.cuda_src.plan import FLOAT32, UINT16, Matrix


@pytest.mark.parametrize(("element", "classes"), [(FLOAT32, 4), (UINT16, 8)])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (9, 501), (8, 1), (17, 64)])
def test_maps_of_classes_tell_every_element_and_no_other(element: int, classes: int, rows: int, columns: int) -> None:
    size = 4 if element == FLOAT32 else 2
    for address in range(4096, 4112, size):
        told = []
        parts = tensor_maps._parts(Matrix(rows, columns, 8, 8, element, classes), address)
        for c, (of_class, wide, pitch, base, shift) in enumerate(parts):
            assert base % 16 == pitch % 16 == 0, "as the copy engine wants it"
            assert pitch >= wide * size, "rows do not overlap"
            assert base > address - 16, "and begin in the memory that the matrix begins in"
            told += [(c + r * classes, base + r * pitch + (shift + x) * size) for r in range(of_class) for x in range(wide - shift)]
        assert sorted(told) == [(r, address + (r * columns + x) * size) for r in range(rows) for x in range(columns)]
