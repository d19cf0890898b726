"""Which GPUs a command measures on: one, several of this machine, or those of a Dask cluster. They are locked while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from opwise.commands.console import chosen_device, named_files, refuse, stderr, surveyed
from opwise.runner import Executor, WorkerLost, run_jobs
from opwise.runner.survey import Survey, survey
from opwise.scaling import Stranded, gpus
from opwise.scaling.crew import Crew, Place
from opwise.scaling.gpus import Busy, Claim, NoSuchGpu

Gpus = Annotated[str | None, typer.Option("--gpus", metavar="all|0,1,…", help="Several GPUs of this machine at once: indices or UUIDs.")]
Share = Annotated[
    bool, typer.Option("--share", envvar="OPWISE_SHARE", help="Measure even if another process computes on the GPU; records are marked.")
]
Scheduler = Annotated[
    str | None, typer.Option("--scheduler", metavar="ADDRESS", help="Many machines: a Dask scheduler, or its file. See docs/scaling.md.")
]
GpuModel = Annotated[
    str | None, typer.Option("--gpu-model", metavar="NAME", help="Use only the cluster's workers with the resource GPU-NAME.")
]


@dataclass
class Ready:
    """The device to measure on, its executor, and other processes that compute there."""

    survey: Survey
    executor: Executor = run_jobs
    shared: str = ""


@contextmanager
def ready(
    device: str | None, files: list[Path] | None = None, *, gpus_: str | None = None, scheduler: str | None = None,
    gpu_model: str | None = None, share: bool = False,
) -> Iterator[Ready]:  # fmt: skip
    """Finds, locks and starts the GPUs, and releases them at the end. Refuses what is not available before anything runs."""
    given = {"--device": device, "--gpus": gpus_, "--scheduler": scheduler}
    if len(named := [name for name, value in given.items() if value]) > 1:
        refuse(f"{' and '.join(named)} exclude each other: give one of them")
    if gpu_model and not scheduler:
        refuse("--gpu-model picks workers of a cluster: give --scheduler too, or pick GPUs of this machine with --gpus")
    with ExitStack() as kept:
        if scheduler:
            yield _cluster(kept, scheduler, gpu_model, files or [], share)
        elif gpus_:
            yield _crew(kept, gpus_, files or [], share)
        else:
            yield _one(kept, device, files or [], share)


def _one(kept: ExitStack, device: str | None, files: list[Path], share: bool) -> Ready:
    name = chosen_device(device)
    found = surveyed(name, files)
    short = str(found.facts.get("gpu") or "")
    if name == "cpu" or not short:
        return Ready(found)
    known = next((gpu for gpu in gpus.listed() if gpu.short == short), None)
    claim = _claimed(kept, [(str(known), known.uuid) if known else (name, short)], share)[0]
    return Ready(found, shared=claim.shared)


def _crew(kept: ExitStack, text: str, files: list[Path], share: bool) -> Ready:
    named = named_files(files)
    places = _places(kept, text, share)
    crew = kept.enter_context(Crew(places, files=named))
    try:
        with stderr.status(f"starting {len(places)} workers and looking at the machine"), ThreadPoolExecutor(1) as pool:
            starting, first = pool.submit(crew.start), crew.seats[0]
            told = None if named else starting.result()
            found = survey(first.device, named, environment=first.environment, told=told)
            starting.result()
            return Ready(found, crew)
    except WorkerLost as lost:
        refuse(f"--gpus {text}: the workers do not start: {lost.reason}")


def _places(kept: ExitStack, text: str, share: bool) -> list[Place]:
    """`cpu,cpu` are places without a GPU, to try things out: kernels run in stand-ins there."""
    if set(text.split(",")) == {"cpu"}:
        return [Place(f"CPU {i}") for i in range(len(text.split(",")))]
    try:
        chosen = gpus.chosen(text, gpus.listed())
    except NoSuchGpu as error:
        refuse(str(error))
    claims = _claimed(kept, [(str(gpu), gpu.uuid) for gpu in chosen], share)
    return [Place.on(gpu, claim.shared) for gpu, claim in zip(chosen, claims, strict=True)]


def _claimed(kept: ExitStack, wanted: Sequence[tuple[str, str]], share: bool) -> list[Claim]:
    claims = []
    for name, uuid in wanted:
        try:
            claims.append(claim := gpus.claim(name, uuid, share))
        except (Busy, OSError) as error:
            refuse(str(error))
        kept.callback(claim.release)
        for told in filter(None, (claim.shared and f"shared with {claim.shared}, and its records say so", claim.doubt)):
            stderr.print(f"warning: {name}: {told}", style="yellow", highlight=False, markup=False)
    return claims


def _cluster(kept: ExitStack, address: str, model: str | None, files: list[Path], share: bool) -> Ready:
    try:
        from opwise.scaling.cluster import BadCluster, Cluster
    except ImportError as error:
        refuse(f"--scheduler needs dask.distributed ({error}): pip install 'opwise[dask]'")
    named = named_files(files)
    try:
        with stderr.status(f"looking at the workers of {address}"):
            cluster = kept.enter_context(Cluster(address, model=model, files=named, share=share))
            return Ready(cluster.look(), cluster)
    except (BadCluster, Stranded) as error:
        refuse(str(error))
