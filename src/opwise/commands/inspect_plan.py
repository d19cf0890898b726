"""`opwise inspect --plan IMPLEMENTATION WORKLOAD`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import typer
from rich.markup import escape
from rich.table import Table

from opwise.backends.gemm import gpu as gpus
from opwise.commands.console import fail, refuse, stdout
from opwise.inspecting.plans import TABLES, Planned, planned, target
from opwise.ops import OPS
from opwise.ops.spec import Workload

TIMES = {"predicted": "predicted us", "full": "measured us", "capped": "power-capped us", "tuned": "tuned here us"}
EXAMPLE = "opwise inspect --plan torch_inline/matmul matmul/4096x4096x4096/float16"


def inspect_plan(given: Sequence[str], gpu: str | None, as_json: bool) -> None:
    """given: an implementation and a workload."""
    if len(given) != 2:
        refuse(f"--plan takes an implementation and a workload: {EXAMPLE}")
    implementation, text = given
    if implementation not in TABLES:
        refuse(f"{implementation!r} has no configurations whose times are predicted: --plan takes {', '.join(TABLES)}")
    workload = _product(text)
    on = target(gpu)
    if on is None:
        refuse(f"--gpu {gpu!r} is unknown: known are {', '.join(gpus.SHIPPED)}, and the GPU of this machine where there is one")
    try:
        found = planned(implementation, workload, on)
    except ImportError as missing:
        fail(f"the plan of {implementation} cannot be asked here: {missing}: see opwise backends")
    if as_json:
        typer.echo(json.dumps(asdict(found)))
    else:
        _print(found)


def _product(text: str) -> Workload:
    try:
        workload = Workload.parse(text)
        right = workload.op == "matmul" and len(workload.shape) == 3 and min(workload.shape) > 0 and workload.dtype in OPS["matmul"].dtypes
    except (ValueError, KeyError):
        right = False
    if not right:
        refuse(f"{text!r} is no product: a workload is written matmul/4096x4096x4096/float16 (M x K x N)")
    return workload


def _print(found: Planned) -> None:
    told = f"{found.implementation} {found.workload} on {found.gpu}, whose numbers are {found.numbers}"
    stdout.print(told, style="bold", highlight=False, markup=False, soft_wrap=True)
    if not found.configurations:
        fail("no configuration takes this product there")
    known = {field: title for field, title in TIMES.items() if any(getattr(row, field) is not None for row in found.configurations)}
    shown = Table(show_edge=False, pad_edge=False)
    shown.add_column("configuration")
    for title in known.values():
        shown.add_column(title, justify="right")
    shown.add_column("")
    for row in found.configurations:
        times = (f"{us:.4g}" if (us := getattr(row, field)) is not None else "" for field in known)
        chosen = f"chosen: {found.by}" if row.name == found.chosen else ""
        shown.add_row(escape(row.name), *times, chosen, style="bold" if chosen else None)
    stdout.print(shown)
