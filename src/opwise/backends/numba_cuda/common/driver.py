"""The CUDA driver calls of Numba's kernels: link PTX, load a kernel, and enqueue it with little Python overhead.

A launch calls cuLaunchKernelEx by ctypes with four prepared arguments; cuLaunchKernel takes eleven, which cuda.bindings converts singly.
A configuration contains its stream, so there is an immutable one for each stream: threads that launch on different streams share none.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Any

import torch

STATIC_SHARED = 48 * 1024  # more must be asked for, on the function
PORTABLE_CLUSTER = 8  # blocks; more must be allowed, on the function
INVALID_CONTEXT = 201
COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE

Enqueue = Callable[[Any], None]


class Config(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attributes_count", ctypes.c_uint),
    )


class Attribute(ctypes.Structure):
    """CUlaunchAttribute of cuda.h, with a value of one int."""

    _fields_ = (("id", ctypes.c_uint), ("_padding", ctypes.c_uint), ("value", ctypes.c_int), ("_rest", ctypes.c_byte * 60))


class Room:
    """A kernel's parameter buffer: 8-byte values and the pointers to them that the driver takes. A launch copies the values."""

    __slots__ = ("_pointers", "at", "values")

    def __init__(self, count: int) -> None:
        self.values = (ctypes.c_int64 * count)()
        start = ctypes.addressof(self.values)
        self._pointers = (ctypes.c_int64 * count)(*range(start, start + 8 * count, 8))
        self.at = ctypes.c_void_p(ctypes.addressof(self._pointers))

    def by_value(self, i: int, address: int) -> None:
        """Makes parameter i the value at `address`."""
        self._pointers[i] = address


class Configs(dict[int, Any]):
    """Raw stream -> the configuration of a launch there. torch has 32 streams a device and priority, and never frees one."""

    def __init__(self, grid: tuple[int, int], threads: int, shared: int, cooperative: bool = False) -> None:
        self._fixed = (*grid, 1), (threads, 1, 1), shared
        self._attribute = Attribute(COOPERATIVE, 0, 1)
        self._attributes = (ctypes.addressof(self._attribute), 1) if cooperative else (None, 0)

    def __missing__(self, stream: int) -> Any:
        found = self[stream] = ctypes.pointer(Config(*self._fixed, stream, *self._attributes))
        return found


@cache
def _library() -> ctypes.CDLL:
    """The driver that torch has loaded."""
    return ctypes.CDLL("libcuda.so.1")


def enqueuer(handle: int, grid: tuple[int, int], threads: int, shared: int, index: int, cooperative: bool = False) -> Enqueue:
    """Room.at -> the kernel is enqueued on torch's current stream of device `index`. Raises RuntimeError with the driver's reason.

    cooperative: all blocks are resident at once; the driver refuses a grid that does not fit.
    """
    enqueue, function, stream_of = _library().cuLaunchKernelEx, ctypes.c_void_p(handle), torch._C._cuda_getCurrentRawStream

    configs = Configs(grid, threads, shared, cooperative)

    def launch(parameters: Any) -> None:
        status = enqueue(configs[stream_of(index)], function, parameters, None)
        if status:
            again(status, parameters)

    def again(status: int, parameters: Any) -> None:
        """A thread that never used the GPU has no context: give it torch's, once."""
        if status != INVALID_CONTEXT:
            refused(status)
        make_current(index)
        status = enqueue(configs[stream_of(index)], function, parameters, None)
        if status:
            refused(status)

    return launch


def runner(enqueue: Enqueue, count: int) -> Callable[..., None]:
    """(8-byte values, `count` of them) -> enqueued. Thread-safe: rooms are reused, each by one launch at a time."""
    rooms: list[Room] = []
    pack = Struct(f"{count}q").pack_into

    def run(*values: int) -> None:
        try:
            room = rooms.pop()
        except IndexError:
            room = Room(count)
        pack(room.values, 0, *values)
        enqueue(room.at)
        rooms.append(room)

    return run


def loaded(cubin: bytes, entry: str, index: int, dynamic_shared: int, cluster: int) -> int:
    """The kernel's handle on device `index`: loaded now, since a lazy load behind a blocked stream deadlocks."""
    from cuda.bindings import driver

    make_current(index)
    module = checked(driver.cuModuleLoadData(cubin))
    handle = checked(driver.cuModuleGetFunction(module, entry.encode()))
    attribute = driver.CUfunction_attribute
    if dynamic_shared > STATIC_SHARED:
        checked(driver.cuFuncSetAttribute(handle, attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic_shared))
    if cluster > PORTABLE_CLUSTER:
        checked(driver.cuFuncSetAttribute(handle, attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))
    return int(handle)


def make_current(index: int) -> None:
    """Makes the device's primary context, which torch uses, current in this thread, unless it is already."""
    from cuda.bindings import driver

    checked(driver.cuInit(0))
    context = checked(driver.cuDevicePrimaryCtxRetain(checked(driver.cuDeviceGet(index))))
    if int(checked(driver.cuCtxGetCurrent())) != int(context):
        checked(driver.cuCtxSetCurrent(context))


def checked(answer: tuple[Any, ...]) -> Any:
    """The driver's result. Raises RuntimeError with its name for the error."""
    status, *rest = answer
    if status:
        refused(status)
    return rest[0] if rest else None


def refused(status: Any) -> None:
    """Raises RuntimeError with the driver's name and text for an error."""
    from cuda.bindings import driver

    code = driver.CUresult(int(status))
    _, name = driver.cuGetErrorName(code)
    _, text = driver.cuGetErrorString(code)
    raise RuntimeError(f"the CUDA driver answered {name.decode()} ({text.decode()})")


def link(ptx: str, arch: str, **options: Any) -> tuple[bytes, str]:
    """cubin and remarks. cuda.core kept its linker under `experimental` before 1.0."""
    try:
        from cuda.core import Linker, LinkerOptions, ObjectCode
    except ImportError:
        from cuda.core.experimental import Linker, LinkerOptions, ObjectCode  # type: ignore[no-redef]
    with warnings.catch_warnings():  # it warns where it falls back from nvJitLink to the driver, which links as well
        warnings.simplefilter("ignore")
        linker = Linker(ObjectCode.from_ptx(ptx.encode()), options=LinkerOptions(arch=arch, **options))
        code = linker.link("cubin").code
        return bytes(code), str(linker.get_info_log())
