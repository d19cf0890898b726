"""`opwise choose --for compile`: an op between a producer and a consumer, fused by Inductor or by opwise's operator."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
import typer
from rich.table import Table

from opwise.choosing.asked import gpu_here, here
from opwise.choosing.chains import CHAINS, WAYS, Timed, sentence, timed
from opwise.commands.console import stderr, stdout
from opwise.ops.spec import Workload
from opwise.runner import Patience, Worker

PURPOSE = "compile"
WHAT = "torch.compile's fusion of the op with what surrounds it, against opwise's operator there, timed now"
BUILD_S = 900.0  # Inductor's code, and torch_inline's where it is the choice


def answer(workload: Workload, device: str | None, as_json: bool) -> None:
    """Raises RuntimeError without a GPU or where a way fails, WorkerLost, ValueError for a device that is not here and for an op without an
    operator under torch.compile."""
    if workload.op not in CHAINS:
        raise ValueError(f"--for {PURPOSE} knows {', '.join(CHAINS)}: {workload.op} has no operator under torch.compile, ask --for another")
    if not torch.cuda.is_available():
        raise RuntimeError(f"--for {PURPOSE} is timed when it is asked, and torch sees no GPU here: ask on a machine with one")
    name = gpu_here(device)
    with stderr.status(f"compiling and timing {CHAINS[workload.op].text}, {workload}"), Worker(name) as worker:
        found: dict[str, Timed] = worker.ask("apply", (timed, name, str(workload)), Patience(BUILD_S, BUILD_S))
    if as_json:
        told = {way: each._asdict() for way, each in found.items()}
        typer.echo(json.dumps({"workload": str(workload), "device": here(name).device, "chain": CHAINS[workload.op].text, "ways": told}))
        return
    show(found, workload, here(name).device)


def show(found: Mapping[str, Timed], workload: Workload, device: str) -> None:
    text = CHAINS[workload.op].text
    stdout.print(f"{text}, {workload}, on {device}", style="bold", highlight=False, markup=False)
    table = Table(show_edge=False, pad_edge=False)
    for name in ("way", "us", "95 % interval", "rank", "relative error"):
        table.add_column(name, justify="left" if name in ("way", "rank") else "right")
    for way in sorted(WAYS, key=lambda way: found[way].us):
        t = found[way]
        rank = "quickest" if t.ratio == 1.0 else "tie" if t.tied else f"{t.ratio:.2f}x"
        table.add_row(way, f"{t.us:.4g}", f"{t.low:.4g} to {t.high:.4g}", rank, f"{t.error:.1e}")
    stdout.print(table)
    stdout.print(sentence(found, text), highlight=False, markup=False, soft_wrap=True)
