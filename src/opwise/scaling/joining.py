"""Checks before any job is sent: the scheduler answers, and its workers run the client's versions and have GPUs. One line per problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from distributed import Client

import opwise
from opwise import provenance
from opwise.scaling.flights import Flights, Seen
from opwise.scaling.hail import located
from opwise.scaling.post import Told, sources

SAME = ("python", "distributed")  # what the two ends must have in the same version: code is sent as Python's own


class BadCluster(ValueError):
    """The cluster cannot be used; the message says why and what to do."""


def connected(address: str, timeout_s: float) -> Client:
    """A client of the scheduler at an address, or of one named by a scheduler file. Raises BadCluster."""
    remedy = "give its address, as tcp://host:8786, or the file it wrote (--scheduler-file)"
    try:
        where = located(address)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadCluster(f"--scheduler {address} is no file of a Dask scheduler ({type(error).__name__}): {remedy}") from error
    try:
        return Client(where, timeout=timeout_s, set_as_default=False, name="opwise")  # type: ignore[no-untyped-call]
    except Exception as error:  # what a port that is no scheduler's makes of this is anybody's guess
        told = (str(error).strip().splitlines() or [""])[0]
        raise BadCluster(f"--scheduler {address}: no Dask scheduler answers there within {timeout_s:g} s ({type(error).__name__}: {told}): "
                         f"{remedy}") from error  # fmt: skip


def check_workers(client: Client, address: str, flights: Flights) -> dict[str, Seen]:
    """The usable workers. Raises BadCluster, SchedulerGone."""
    everyone = flights.everyone()
    usable = {name: seen for name, seen in everyone.items() if seen.resources.get(flights.resource, 0) >= 1}
    if not usable:
        offered = sorted({name for seen in everyone.values() for name in seen.resources})
        there = f"{len(everyone)} workers, offering {', '.join(offered) or 'no resource'}" if everyone else "no worker"
        raise BadCluster(f"{address} has no worker with the resource {flights.resource} ({there}): start workers with "
                         f"--resources {flights.resource}=1")  # fmt: skip
    for name, seen in usable.items():
        if seen.threads != 1:
            raise BadCluster(f"worker {name} has {seen.threads} threads, and would time as many jobs at once: start it with --nthreads 1")
    _check_versions(client, set(usable))
    _check_package(client, list(usable))
    return usable


def _check_versions(client: Client, usable: set[str]) -> None:
    found: Any = client.get_versions()
    mine = _versions(found["client"])
    others = {"the scheduler": found["scheduler"], **{f"worker {a}": v for a, v in found["workers"].items() if a in usable}}
    for who, versions in others.items():
        for name, version in _versions(versions).items():
            if version != mine[name]:
                raise BadCluster(f"{who} has {name} {version}, this client {mine[name]}: install the same on both")


def _versions(found: Mapping[str, Any] | None) -> dict[str, str]:
    packages = (found or {}).get("packages", {})
    versions = {name: str(packages.get(name, "none")) for name in SAME}
    return versions | {"python": ".".join(versions["python"].split(".")[:2])}


def _check_package(client: Client, usable: list[str]) -> None:
    here = {"version": opwise.__version__, "commit": list(provenance.commit()), "sources": sources()}
    for name, there in client.run(_looker(), workers=usable, on_error="return").items():
        if isinstance(there, BaseException):
            raise BadCluster(f"worker {name} cannot be asked: {type(there).__name__}: {there}")
        if "missing" in there:
            raise BadCluster(f"worker {name} cannot import opwise ({there['missing']}): install opwise {opwise.__version__} there, with "
                             "the extra dask")  # fmt: skip
        for what, mine in here.items():
            if there[what] != mine:
                told = "kernels of other sources" if what == "sources" else f"opwise {what} {there[what]}, this client {mine}"
                raise BadCluster(f"worker {name} has {told}: install the same on both, and restart the worker")


def _looker() -> Callable[[], dict[str, Any]]:
    """Sent as code, so that a worker without opwise can say so."""

    def told() -> dict[str, Any]:
        try:
            import opwise
            from opwise.provenance import commit
            from opwise.scaling.post import sources
        except Exception as error:
            return {"missing": f"{type(error).__name__}: {error}"}
        return {"version": opwise.__version__, "commit": list(commit()), "sources": sources()}

    return told


def check_same(found: Mapping[str, Told]) -> None:
    """Checks for one device model, driver and set of libraries. Raises BadCluster."""
    first_at, first = next(iter(found.items()))
    for address, told in found.items():
        for what in ("device", "driver", "versions"):
            if told.facts[what] != first.facts[what]:
                a, b = _difference(first.facts[what], told.facts[what])
                remedy = "--gpu-model NAME picks workers with the resource GPU-NAME" if what == "device" else "make them the same"
                raise BadCluster(f"worker {first_at} has {what} {a}, worker {address} {b}, and one run is of one: {remedy}")


def _difference(a: Any, b: Any) -> tuple[str, str]:
    if not isinstance(a, Mapping) or not isinstance(b, Mapping):
        return str(a), str(b)
    name = next(n for n in sorted({*a, *b}) if a.get(n) != b.get(n))
    return f"{name} {a.get(name, 'none')}", f"{name} {b.get(name, 'none')}"
