"""Counted calls of a program: of an op, or of a function that contains one.

A recording is a JSON file: the command, the seconds that it ran, the versions and the GPU, and its calls, the most frequent first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from opwise.fields import made, one_of
from opwise.ops import OPS
from opwise.ops.spec import LAYOUTS, Workload

SCHEMA = 1


class BadRecording(ValueError):
    """A file is not a recording; the message says how to make one."""


@dataclass(frozen=True)
class Call:
    """`calls` calls that were alike.

    op: one of OPS, also if it is only contained; `near` then names the function that was called, "" for the op itself. shape: the
    workload's; (M, K, N) for a product, (rows, columns) for softmax. dtype: a workload's, or torch's name of another. strides: of each
    input, in elements. contiguous: whether all are. aligned: whether all begin on 16 bytes. gradient: "", "wanted", or "backward" for a
    call of a backward pass. compiled: inside a torch.compile'd function."""

    op: str = field(metadata={"take": one_of(tuple(OPS))})
    function: str  # torch's own name: aten.mm
    near: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[tuple[int, ...], ...]
    contiguous: bool
    aligned: bool
    device: str
    gradient: str = field(metadata={"take": one_of(("", "wanted", "backward"))})
    compiled: bool
    calls: int

    @property
    def layout(self) -> str:
        """For a product, which factors are transposed views: NN, NT, TN, TT; for other ops contiguous; strided for all else."""
        if self.contiguous:
            return "NN" if self.op == "matmul" and not self.near else "contiguous"
        if self.op != "matmul" or self.near:
            return "strided"
        m, k, n = self.shape
        letters = [_letter(stride, sizes) for stride, sizes in zip(self.strides, ((m, k), (k, n)), strict=True)]
        return "strided" if "" in letters else "".join(letters)

    @property
    def workload(self) -> Workload | None:
        """The workload; None for a call that is not an op, or whose dtype the op's kernels do not take."""
        return None if self.near or self.dtype not in OPS[self.op].dtypes else Workload(self.op, self.shape, self.dtype, self.transposed)

    @property
    def transposed(self) -> str:
        """The workload's layout."""
        return self.layout if self.layout in LAYOUTS else ""

    @property
    def name(self) -> str:
        """The workload, or else torch's function with its sizes and dtype."""
        taken = self.workload
        return str(taken) if taken else f"{self.function.removeprefix('aten.')}/{'x'.join(map(str, self.shape)) or 'scalar'}/{self.dtype}"

    @property
    def left_to_eager(self) -> str:
        """Why opwise's function leaves such a call to torch eager, also on a GPU and whatever was measured; "" if it chooses."""
        if self.near:
            return self.near
        if self.dtype not in OPS[self.op].dtypes:
            return f"{self.dtype}: taken are {', '.join(OPS[self.op].dtypes)}"
        if 0 in self.shape:
            return "empty"
        if self.gradient == "backward":
            return "torch's backward pass makes it"
        if not self.contiguous and not self.transposed:
            return f"layout {self.layout}: contiguous tensors are taken, and a product's transposed factors"
        return ""


def _letter(stride: Sequence[int], sizes: tuple[int, int]) -> str:
    """N for rows one after the other, T for columns one after the other, "" for neither. A side of one element fits both: N."""
    (by_row, by_column), (rows, columns) = stride, sizes
    if (columns == 1 or by_column == 1) and (rows == 1 or by_row == columns):
        return "N"
    return "T" if (rows == 1 or by_row == 1) and (columns == 1 or by_column == rows) else ""


@dataclass(frozen=True)
class Recording:
    """seconds: duration of the recording. dispatched: the number of all torch calls."""

    command: tuple[str, ...]
    seconds: float
    dispatched: int
    device: str
    versions: Mapping[str, str]
    calls: tuple[Call, ...]

    def write(self, path: Path) -> None:
        """Raises OSError."""
        path.write_text(json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Raises BadRecording, and OSError where the file cannot be read."""
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            schema = data.pop("schema")
            if schema != SCHEMA:
                raise BadRecording(f"{path} has schema {schema}, this opwise reads {SCHEMA}: record the program again")
            found = made(cls, data)
            for call in found.calls:
                if call.workload is not None:
                    OPS[call.op].cost(call.workload), OPS[call.op].sizes(call.shape)  # of an op's own call the sizes are the op's
            return found
        except BadRecording:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"
            raise BadRecording(f"{path} is no recording ({why}): `opwise record -- python app.py` makes one") from error
