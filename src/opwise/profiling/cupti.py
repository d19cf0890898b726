"""Names of kernels as they are launched, by CUPTI's callbacks: torch, CuPy, Numba and Triton all launch through the driver.

torch ships libcupti for its profiler. CUPTI has one subscriber per process, so no profiler can run at the same time."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

DRIVER_API, RUNTIME_API = 1, 2  # CUpti_CallbackDomain
ENTER = 0  # CUpti_ApiCallbackSite
LAUNCHES = ("cuLaunch", "cudaLaunch")  # and all that begins so: cooperative ones, those with attributes


class CallbackData(ctypes.Structure):
    """CUpti_CallbackData of cupti_callbacks.h."""

    _fields_ = (
        ("site", ctypes.c_int),
        ("function", ctypes.c_char_p),
        ("parameters", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("context", ctypes.c_void_p),
        ("context_uid", ctypes.c_uint32),
        ("correlation_data", ctypes.POINTER(ctypes.c_uint64)),
        ("correlation_id", ctypes.c_uint32),
    )


CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
NO_LIBRARY = "libcupti is not in this process"


@dataclass
class Launched:
    """Kernels by name, in the order of their launches. `available`: why there are none, "" if they are watched."""

    names: list[str] = field(default_factory=list)
    missing: str = ""


def readable(name: str) -> str:
    """The kernel's name as in the source, demangled."""
    import torch

    demangle = getattr(torch._C, "_demangle", None)
    return str(demangle(name)) if demangle is not None and name.startswith("_Z") else name


def library() -> ctypes.CDLL | None:
    """The libcupti that torch has loaded into this process, or None."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.rpartition(" ")[2]
            if Path(path).name.startswith("libcupti.so"):
                return ctypes.CDLL(path)
    for name in ("libcupti.so", "libcupti.so.13", "libcupti.so.12"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


@contextlib.contextmanager
def watched(told: Callable[[str], None], cupti: ctypes.CDLL | None = None) -> Iterator[Launched]:
    """Collects the names of kernels as they are launched, and calls `told` with each before it runs."""
    found = Launched()

    def called(_: object, domain: int, number: int, data: int) -> None:
        call = CallbackData.from_address(data)
        if call.site != ENTER or not (call.function or b"").decode().startswith(LAUNCHES) or not call.symbol:
            return
        name = readable(call.symbol.decode(errors="replace"))
        found.names.append(name)
        told(name)

    with subscribed(called, (DRIVER_API, RUNTIME_API), cupti) as missing:
        found.missing = missing.replace(NO_LIBRARY, f"{NO_LIBRARY}, so a fault is told by its stage and not by its kernel")
        yield found


@contextlib.contextmanager
def subscribed(called: Callable[[object, int, int, int], None], domains: Sequence[int], cupti: ctypes.CDLL | None = None) -> Iterator[str]:
    """Context manager: CUPTI calls `called(_, domain, number, address of the data)` for the callbacks of some domains. Yields "", or why it
    does not."""
    cupti = cupti or library()
    if cupti is None:
        yield NO_LIBRARY
        return
    callback = CALLBACK(called)  # kept alive by this frame
    subscriber = ctypes.c_void_p()
    status = cupti.cuptiSubscribe(ctypes.byref(subscriber), callback, None)
    if status:
        yield f"CUPTI refuses a subscriber with status {status}: another profiler may be attached"
        return
    try:
        for domain in domains:
            cupti.cuptiEnableDomain(ctypes.c_uint32(1), subscriber, ctypes.c_int(domain))
        yield ""
    finally:
        cupti.cuptiUnsubscribe(subscriber)
