"""`opwise inspect`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from opwise.backends import BACKENDS
from opwise.commands import inspect_plan
from opwise.commands.console import fail, refuse, stderr, stdout
from opwise.inspecting import intermediate, listing
from opwise.inspecting.compilers import ARCHITECTURES, COMPILERS, Compiled
from opwise.inspecting.rows import Row
from opwise.inspecting.tools import ToolMissing
from opwise.ops import OPS
from opwise.ops.spec import DTYPES
from opwise.runner import Patience, Worker, WorkerLost

EXAMPLES = (
    "Examples:  opwise inspect triton_jit/softmax --arch sm_90  ·  opwise inspect cupy_raw/gelu:textbook --dtype float32  ·  "
    "opwise inspect numba_cuda/square --arch sm_80 --arch sm_90  ·  "
    "opwise inspect triton_jit/softmax --kernel '8192 columns, float16' --sass  ·  "
    "opwise inspect --plan torch_inline/matmul matmul/4096x4096x4096/float16"
)
TAKEN = "an implementation (triton_jit/softmax, torch_inline/gelu:textbook), a backend or an op"
CLASSES = {"tensor": "tensor", "fma": "FMA", "special": "special", "double": "double"}
READ = {"sass": listing.sass, "ptx": listing.ptx}
FORMS = (*READ, *intermediate.FORMS)
COMPILE_S = 1800.0

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help=f"{TAKEN[0].upper()}{TAKEN[1:]}.")]
Arch = Annotated[list[str] | None, typer.Option("--arch", help=f"{', '.join(ARCHITECTURES)}, or all; may be repeated. Default: sm_90.")]
Dtype = Annotated[str | None, typer.Option("--dtype", help=f"Kernels of one dtype: {', '.join(DTYPES)}.")]
Part = Annotated[str | None, typer.Option("--kernel", metavar="PART", help="Kernels whose name has this part.")]


def inspect(
    names: Names,
    arch: Arch = None,
    dtype: Dtype = None,
    kernel: Part = None,
    variants: Annotated[bool, typer.Option("--variants", help="The textbook and other named variants too.")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="The machine code, beside its source lines.")] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="The PTX, beside its source lines.")] = False,
    ttir: Annotated[bool, typer.Option("--ttir", help="Triton only: its block-level IR.")] = False,
    ttgir: Annotated[bool, typer.Option("--ttgir", help="Triton only: the GPU IR, with layouts over the threads.")] = False,
    llir: Annotated[bool, typer.Option("--llir", help="Triton only: LLVM IR, from which PTX is made.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="For IMPLEMENTATION WORKLOAD: possible configurations, their times, and the choice.")
    ] = False,
    gpu: Annotated[str | None, typer.Option("--gpu", help="With --plan: GPU to plan for. Default: the GPU here, else an H100.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable: one kernel and architecture a line, or one plan.")] = False,
) -> None:
    """Show what the kernels compile to, without a GPU: registers, spills, shared memory, instructions by class. With --plan: which
    configuration a product gets, and why."""
    forms = [form for form, wanted in zip(FORMS, (sass, ptx, ttir, ttgir, llir), strict=True) if wanted]
    if plan:
        given = {"--arch": arch, "--dtype": dtype, "--kernel": kernel, "--variants": variants, **{f"--{form}": True for form in forms}}
        if named := [name for name, value in given.items() if value]:
            refuse(f"--plan is about a choice, not about machine code: leave {', '.join(named)} out")
        inspect_plan.inspect_plan(names, gpu, as_json)
        return
    if gpu is not None:
        refuse("--gpu needs --plan: compilers take --arch")
    if dtype is not None and dtype not in DTYPES:
        refuse(f"--dtype {dtype!r} is unknown: known are {', '.join(DTYPES)}")
    if len(forms) + as_json > 1:
        refuse(f"{', '.join(f'--{form}' for form in FORMS)} and --json exclude each other: give one")
    wanted = [pair for name in names for pair in _wanted(name)]
    architectures = _architectures(arch)
    found = [pair for pair in _inspected(wanted, architectures, dtype, variants) if not kernel or kernel in pair[0].kernel]
    if not found:
        refuse(f"{' '.join(names)} has no kernel{f' of {dtype}' if dtype else ''}{f' with {kernel!r} in its name' if kernel else ''}: "
               "leave --dtype and --kernel out to see all")  # fmt: skip
    if as_json:
        for row, _ in found:
            typer.echo(json.dumps(dataclasses.asdict(row)))
    elif forms:
        _list(found, forms[0])
    else:
        _tables([row for row, _ in found], architectures)


def _wanted(name: str) -> Iterator[tuple[str, str, str | None]]:
    """backend, op, variant of each implementation meant; variant None where none was named."""
    head, slash, rest = name.partition("/")
    op, colon, variant = rest.partition(":")
    if not slash and head in OPS:
        yield from ((backend, head, None) for backend in COMPILERS)
    elif head not in BACKENDS:
        refuse(f"unknown {'backend' if slash else 'name'} {head!r} in {name!r}: taken is {TAKEN}; backends are {', '.join(BACKENDS)}, "
               f"ops {', '.join(OPS)}")  # fmt: skip
    elif not slash:
        yield from ((head, each, None) for each in OPS)
    elif op not in OPS:
        refuse(f"unknown op {op!r} in {name!r}: known are {', '.join(OPS)}")
    else:
        yield head, op, variant if colon else None


def _architectures(given: list[str] | None) -> list[str]:
    for name in given or []:
        if name not in (*ARCHITECTURES, "all"):
            refuse(f"--arch {name!r} is unknown: known are {', '.join(ARCHITECTURES)} and all")
    return list(ARCHITECTURES) if "all" in (given or []) else list(dict.fromkeys(given or ["sm_90"]))


def _inspected(
    wanted: Sequence[tuple[str, str, str | None]], architectures: Sequence[str], dtype: str | None, variants: bool
) -> Iterator[tuple[Row, Compiled]]:
    """In the order they were named. A compiler that takes its process down costs one op on one architecture, with the reason."""
    worker: Worker | None = None
    try:
        for backend, op, variant in dict.fromkeys(wanted):
            for arch in architectures:
                with stderr.status(f"compiling {backend}/{op} for {arch}"):
                    try:
                        worker = worker or Worker("cpu", environment={"TRITON_INTERPRET": "0"})
                        answer = worker.ask("inspect", (backend, op, arch, dtype), Patience(COMPILE_S))
                    except WorkerLost as lost:
                        if worker is not None:
                            worker.kill()
                        worker = None
                        answer = (("",), ((Row(f"{backend}/{op}", "", "", arch, "n/a", f"does not compile: {lost.reason}"), Compiled("")),))
                if isinstance(answer, str):
                    fail(answer)
                yield from _chosen(f"{backend}/{op}", variant, variants, *answer)
    finally:
        if worker is not None:
            worker.kill()


def _chosen(
    name: str, variant: str | None, variants: bool, known: Sequence[str], found: Iterable[tuple[Row, Compiled]]
) -> Iterator[tuple[Row, Compiled]]:
    if variant and variant not in known:
        refuse(f"{name} has no variant {variant!r}: known are {', '.join(v or '(unnamed)' for v in known) or 'none'}")
    own = f"{name}:{variant}" if variant else name
    whole = [pair for pair in found if not pair[0].dtype]  # a unit or a backend that does not compile speaks for all variants
    for row, kernel in found:
        if row.implementation == own or (variant is None and variants) or (row, kernel) in whole:
            yield row, kernel


def _list(found: Iterable[tuple[Row, Compiled]], form: str) -> None:
    missing, listed = "", False
    for row, kernel in found:
        typer.echo(f"{row.implementation}  {row.kernel}  {row.arch}: {row.reason or _told(row)}")
        if kernel.cubin:
            try:
                lines = READ[form](kernel) if form in READ else intermediate.listing(kernel, form)
            except intermediate.NoForm as error:
                missing = str(error)
                typer.echo(f"{missing}\n")
                continue
            except (ToolMissing, RuntimeError) as error:
                fail(str(error))
            listed = True
            typer.echo("\n".join(listing.beside(lines)) + "\n")
    if missing and not listed:
        fail(missing)


def _told(row: Row) -> str:
    return f"{row.registers} registers, {row.spilled_bytes} bytes spilled, {row.instructions} instructions"


def _tables(rows: Sequence[Row], architectures: Sequence[str]) -> None:
    """A table an implementation and dtype; the architectures of a kernel stand below each other."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.implementation, row.dtype), []).append(row)
    for (name, dtype), of_group in groups.items():
        stdout.print(f"{name} {dtype}".rstrip(), style="bold", highlight=False, markup=False)
        order = {kernel: i for i, kernel in enumerate(dict.fromkeys(row.kernel for row in of_group))}
        of_group.sort(key=lambda row: (order[row.kernel], architectures.index(row.arch)))
        stdout.print(_table(of_group))
        stdout.print()


def _table(rows: Sequence[Row]) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("kernel", overflow="fold")
    table.add_column("arch", no_wrap=True)
    for column in ("regs", "spill B", "shared B", "instr", *CLASSES.values()):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("global loads", "global stores", "other memory"):
        table.add_column(column, overflow="fold")
    before = ""
    for row in rows:
        name, before = (row.kernel if row.kernel != before else "", row.kernel)
        if row.registers is None:
            table.add_row(escape(name), row.arch, "n/a", *[""] * (len(table.columns) - 4), escape(row.reason))
            continue
        spill = f"[red]{row.spilled_bytes}[/]" if row.spilled_bytes else "0"
        counts = [str(row.classes.get(each, 0) or "") for each in CLASSES]
        memory = [_widths(row, "global load"), _widths(row, "global store"), _others(row)]
        if row.reason:
            memory[2] = f"n/a: {row.reason}"
        table.add_row(escape(name), row.arch, str(row.registers), spill, _shared(row), str(row.instructions), *counts, *map(escape, memory))
    return table


def _shared(row: Row) -> str:
    """Static, and what a launch adds; "…" where each launch decides."""
    static = str(row.shared_bytes or "")
    if row.dynamic_shared_bytes is None:
        return f"{static}+…" if static else "…"
    return "+".join(filter(None, [static, str(row.dynamic_shared_bytes or "")])) or "0"


def _widths(row: Row, space: str) -> str:
    return " ".join(f"{times}x{width}B" for width, times in sorted(row.accesses.get(space, {}).items(), reverse=True))


def _others(row: Row) -> str:
    found = [f"{space} {_widths(row, space)}" for space in row.accesses if not space.startswith("global")]
    bulk = row.classes.get("async", 0) - sum(row.accesses.get("async copy", {}).values())
    return ", ".join([*found, *([f"bulk {bulk}"] if bulk else []), *([f"atomic {n}"] if (n := row.classes.get("atomic")) else [])])
