"""`opwise block`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from opwise.backends import BACKENDS
from opwise.block import running, table
from opwise.block.records import BASELINE, BlockRecord, store
from opwise.block.sizes import DEFAULT, MODELS, TINY, TINY_TOKENS, TOKENS, Sizes
from opwise.block.turns import Pace
from opwise.block.wiring import OPS_INSIDE
from opwise.commands.console import Device, Json, Out, With, fail, known, one_form, refuse, stderr, stdout
from opwise.commands.executors import Share, ready
from opwise.record import BAD
from opwise.runner import WorkerLost

EXAMPLES = (
    "Examples:  opwise block  ·  opwise block --op matmul  ·  opwise block --model 70b --tokens 2048  ·  "
    "opwise block --backend triton_jit --op softmax --op gelu  ·  opwise block --with my_softmax.py --json"
)
LEAST_S = 0.1
Model = Annotated[str | None, typer.Option(help=f"Sizes of a model: {', '.join(MODELS)}. Default: {DEFAULT}; {TINY} without a GPU.")]
Tokens = Annotated[int | None, typer.Option(help=f"Rows of the block. Default: {TOKENS}; {TINY_TOKENS} for {TINY}.")]
Backends = Annotated[
    list[str] | None, typer.Option("--backend", help=f"Only this one beside {BASELINE}; may be repeated. Known: {', '.join(BACKENDS)}.")
]
Swapped = Annotated[list[str] | None, typer.Option("--op", help=f"Swap only this op; may be repeated. Known: {', '.join(OPS_INSIDE)}.")]
Seconds = Annotated[float, typer.Option(help="How long each candidate runs, lead-ins included.")]


def block(
    model: Model = None,
    tokens: Tokens = None,
    backend: Backends = None,
    op: Swapped = None,
    seconds: Seconds = 6.0,
    device: Device = None,
    out: Out = Path("results"),
    own_files: With = None,
    share: Share = False,
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table in Markdown.")] = False,
) -> None:
    """Run a transformer block with each backend's kernels: time, SM clock, watts, joules, and each op's share.

    torch computes the ops that a backend lacks. All candidates take turns for seconds. Without a GPU a tiny block is checked in stand-ins,
    and nothing is timed. Exit status 1 where something is wrong or failed.
    """
    one_form(as_json, markdown)
    if seconds < LEAST_S:
        refuse(f"--seconds {seconds:g}: at least {LEAST_S:g} are taken")
    known("--op", op, OPS_INSIDE)
    known("--backend", backend, (*BACKENDS, *(path.stem for path in own_files or ())))
    with ready(device, own_files, share=share) as here:
        sizes = _sizes(model, tokens, here.survey.device != "cpu")
        with stderr.status("starting") as status:
            try:
                records = running.run(
                    here.survey, sizes, Pace(seconds), backends=backend or (), ops=op or (), shared=here.shared,
                    progress=lambda name, phase: status.update(escape(f"{name} {phase}".strip())),
                )  # fmt: skip
            except WorkerLost as lost:
                fail(f"{sizes}: {lost.reason}. Where memory is short, give fewer --tokens")
            except KeyboardInterrupt:
                stderr.print("interrupted: nothing is stored", style="yellow")
                raise typer.Exit(130) from None
    path = store(records, out)
    if as_json:
        for record in records:
            typer.echo(record.to_json())
    else:
        print_blocks(records, markdown)
    stderr.print(f"stored in {path}", highlight=False, markup=False, soft_wrap=True)
    if bad := [r for r in records if r.status in BAD]:
        stderr.print(f"{len(bad)} of {len(records)} backends are wrong or failed", style="bold red")
        raise typer.Exit(1)


def _sizes(model: str | None, tokens: int | None, on_gpu: bool) -> Sizes:
    """Without a GPU there is one size: a larger one would keep an interpreter busy for hours."""
    if not on_gpu and (model not in (None, TINY) or tokens not in (None, TINY_TOKENS)):
        refuse(f"without a GPU the model {TINY} at {TINY_TOKENS} tokens is checked: leave --model and --tokens out")
    name = model or (DEFAULT if on_gpu else TINY)
    try:
        return Sizes.of(name, (TINY_TOKENS if name == TINY else TOKENS) if tokens is None else tokens)
    except ValueError as error:
        refuse(str(error))


def print_blocks(records: Sequence[BlockRecord], markdown: bool = False) -> None:
    """A block run, as the command and `opwise show` print it."""
    if markdown:
        typer.echo(f"{table.title(records)}\n\n{table.markdown(records)}")
        return
    stdout.print(table.title(records), style="bold", highlight=False, markup=False, soft_wrap=True)
    stdout.print(table.table(records))
    if table.columns(records, full=True):
        stdout.print(table.table(records, full=True))
    if any(r.steps_us for r in records):
        stdout.print(table.steps(records))
    for line in table.notes(records):
        stdout.print(line, highlight=False, markup=False, soft_wrap=True)
    if not any(r.block_us for r in records):
        stdout.print("nothing was timed: times, clocks and joules need a GPU", highlight=False)
