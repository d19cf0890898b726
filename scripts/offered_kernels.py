"""Cells that have each kernel launched which the plans of an H100 know, whether or not one of them takes it today: for scripts/sanitize.py.

    python scripts/offered_kernels.py offered.json
    SANITIZE='--also offered.json' scripts/sanitize.sh

Needs no GPU. Of the products and rows tried, which are small, a kernel gets the least that keeps it busy for several steps of K, and else
the least that it is offered for.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from opwise.backends import BACKENDS
from opwise.backends.cuda_src.matmul.configurations import Config
from opwise.backends.gemm.gpu import HOPPER
from opwise.backends.tuned_table import TUNABLE
from opwise.ops import OPS, Workload
from opwise.ops.matmul import DTYPES as PRODUCTS
from opwise.ops.spec import LAYOUTS
from opwise.tuning.matmul import offered, product_of
from opwise.tuning.ways import ways

CUDA = ("torch_inline", "cupy_raw")
HAND_WRITTEN = tuple(name for name in BACKENDS if name != "torch_eager")
# (M, K, N) of products that are tried: few rows, few columns, on 16 bytes and off them, a short and a long K; and some that fill a GPU.
SMALL = ((1, 2, 3, 4, 8, 16, 17, 130, 1003), (33, 520, 1003, 4104), (*range(1, 9), 12, 16, 776, 1001))
LARGE = ((1003, 3043), (1032, 3520), (1024, 3201))
LENGTHS = (5, 13, 31, 33, 64, 127, 130, 256, 301, 320, 520, 1000, 1003, 1024, 1027, 2048, 3072, 4096, 5003, 8192, 12288, 16384, 20001,
           32768, 49152, 65536, 100000, 131072, 262144, 524288, 1048576, 3000000)  # fmt: skip
MOST_OF_ROWS = 2**25  # elements


def products() -> Iterator[Workload]:
    """The least first."""
    for shape in sorted((*product(*SMALL), *product(*LARGE)), key=math.prod):
        yield from (Workload("matmul", shape, dtype, layout) for dtype in PRODUCTS for layout in LAYOUTS)


def rows() -> Iterator[Workload]:
    """A few and, of short ones, more than a GPU has room for at once."""
    for columns, few in product(LENGTHS, (3, 17, 3000)):
        if few * columns <= MOST_OF_ROWS:
            yield from (Workload("softmax", (few, columns), dtype) for dtype in OPS["softmax"].dtypes)


class Offer(NamedTuple):
    """`kernel` is the same where the same is launched; `configuration`: the table's name for it."""

    kernel: tuple[Any, ...]
    configuration: str
    busy: bool = True  # several tiles, of several steps of K


def of_products(table: str, workload: Workload) -> Iterator[Offer]:
    """Of CUDA C++ a kernel goes by its name in the sources; others also by whether rows begin on 16 bytes, for which they are compiled."""
    asked = product_of(workload)
    for name, config in offered(table, asked, HOPPER).items():
        work, own = config.work(asked), (name, asked.kind, asked.vector_bytes == 16)
        kernel = (config.kernel(asked.kind),) if isinstance(config, Config) else own
        yield Offer(kernel, name, work.steps >= 2 * work.stages and work.ctas > work.cluster)


def of_rows(table: str, workload: Workload) -> Iterator[Offer]:
    """What `opwise tune` would measure. CUDA C++'s are told apart by what is compiled, others, compiled for each length, are not."""
    for name, compiled in ways(TUNABLE[table]).configurations(workload).items():
        yield Offer((compiled,) if table.startswith("cuda_src") else (name, workload.dtype), name)


def least(workloads: Iterable[Workload], offers: Callable[[Workload], Iterable[Offer]]) -> list[tuple[str, str]]:
    """(workload, configuration) of each kernel: the first that keeps it busy, else the first."""
    first: dict[tuple[Any, ...], tuple[str, str]] = {}
    busy: dict[tuple[Any, ...], tuple[str, str]] = {}
    for workload in workloads:
        for offer in offers(workload):
            found = busy if offer.busy else first
            found.setdefault(offer.kernel, (str(workload), offer.configuration))
    return list({**first, **busy}.values())


def anywhere(backend: str) -> list[list[Any]]:
    """Rows that begin where an element may, of the ops whose smoke workloads would begin on 16 bytes."""
    return [[f"{backend}/{op}", str(w), "", 1] for op, spec in OPS.items() for w in spec.workloads["smoke"]]


def cells(backend: str) -> list[list[Any]]:
    """As sanitize.Cell."""
    folder = "cuda_src" if backend in CUDA else backend
    found = {
        "matmul": least(products(), partial(of_products, f"{folder}/matmul")),
        "softmax": least(rows(), partial(of_rows, f"{folder}/softmax")),
    }
    return [[f"{backend}/{op}", *cell] for op, each in found.items() for cell in each] + anywhere(backend)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--backends", nargs="+", default=HAND_WRITTEN, choices=HAND_WRITTEN, metavar="BACKEND")
    given = parser.parse_args()
    found = []
    for backend in given.backends:
        own = cells(backend)
        print(f"{backend}: {len(own)} cells")
        found += own
    given.file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
