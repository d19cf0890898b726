"""From a Python function to the cheapest launch Numba's output allows.

A kernel here takes 8-byte values only: addresses (as int64, or as `CPointer`s) and int64 sizes. That keeps its parameters at one
register pair each (a Numba array is seven), lets `data_ptr()` be the argument, and lets the arguments be packed once, at bind.
The way: `cuda.compile` (Python -> PTX), cuda.core's linker (PTX -> cubin), a driver function handle for each device, and
cuLaunchKernel on torch's current stream. `kernel[grid, block, stream](...)` resolves types and streams anew at each launch: 7 to 20 times
the time of this.

In the simulator the same function is handed the tensors' own memory, element by element, without a copy.
"""

from __future__ import annotations

import ctypes
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import config, cuda, types
from torch import Tensor

from opwise.backends.cubin import instructions, told
from opwise.backends.numba_cuda.by_value import ByValue, with_maps
from opwise.backends.protocol import Launch

SIMULATED = bool(config.ENABLE_CUDASIM)
STATIC_SHARED = 48 * 1024  # more must be asked for, on the function
INVALID_CONTEXT = 201

int64 = types.int64


def inlined(function: Callable[..., Any]) -> Any:
    """A device function, put into its caller before types are known: compiled on its own it would ask for a GPU to compile for.

    In the simulator it stays Python.
    """
    return function if SIMULATED else cuda.jit(device=True, inline="always")(function)


class Pointer:
    """What a CPointer argument is in the simulator: memory without a shape. Unlike a real one it raises outside the tensor."""

    __slots__ = ("memory",)

    def __init__(self, tensor: Tensor) -> None:
        flat = tensor.detach().reshape(-1)
        bits = flat.view(torch.int16).numpy().view(np.uint16) if flat.dtype == torch.bfloat16 else flat.numpy()
        self.memory = bits

    def __getitem__(self, index: int) -> Any:
        if index < 0:
            raise IndexError(f"read at {index}, before the tensor")
        return self.memory[index]

    def __setitem__(self, index: int, value: Any) -> None:
        if index < 0:
            raise IndexError(f"write at {index}, before the tensor")
        self.memory[index] = value


@dataclass(eq=False)
class Kernel:
    """A kernel of 8-byte parameters and a fixed block size. `dynamic_shared` bytes are asked for at each launch.

    `min_blocks` per multiprocessor is a promise that bounds the registers. Compiled once an architecture, loaded once a device.
    The first `maps` parameters are tensor maps by value: the kernel has their addresses, a launch takes them as ByValue.
    `only`: the one architecture it runs on, whose own instructions (sm_90a's) it may then use.
    """

    function: Callable[..., None]
    parameters: tuple[Any, ...]
    threads: int
    min_blocks: int = 1
    dynamic_shared: int = 0
    maps: int = 0
    only: str | None = None
    _cubins: dict[str, Any] = field(default_factory=dict, repr=False)
    _handles: dict[int, Any] = field(default_factory=dict, repr=False)

    def ptx(self, arch: str) -> str:
        """PTX for "sm_90". Raises ValueError on what is no architecture."""
        found = re.fullmatch(r"sm_(\d+)(\d)", arch)
        if found is None:
            raise ValueError(f"{arch!r} is no architecture: write sm_80, sm_90 or sm_100")
        cc: tuple[Any, ...] = (int(found[1]), int(found[2]), *(["a"] if self.only else []))
        signature = types.void(*self.parameters)
        bounds = (self.threads, self.min_blocks)
        with warnings.catch_warnings():  # that the grid is small, or that Numba's own internals deprecate something, is no news here
            warnings.simplefilter("ignore")
            text, _ = cuda.compile(self.function, signature, device=False, abi="numba", cc=cc, launch_bounds=bounds)
        return with_maps(str(text), self.maps)

    def runs_on(self, arch: str) -> bool:
        return self.only in (None, arch)

    def target(self, arch: str) -> str:
        """What the linker calls `arch`. Raises ValueError on an architecture that the kernel does not run on."""
        if not self.runs_on(arch):
            raise ValueError(f"{self.function.__qualname__} runs on {self.only} alone, given {arch}: use another kernel")
        return f"{arch}a" if self.only else arch

    def assemble(self, arch: str) -> tuple[bytes, str]:
        """cubin, and the name of its entry."""
        if arch not in self._cubins:
            ptx = self.ptx(arch)
            entry = re.search(r"\.entry\s+([\w$]+)", ptx)
            if entry is None:
                raise RuntimeError(f"Numba compiled {self.function.__qualname__} to PTX without an entry")
            self._cubins[arch] = (_link(ptx, self.target(arch))[0], entry[1])
        cubin: tuple[bytes, str] = self._cubins[arch]
        return cubin

    def report(self, arch: str) -> str:
        """ "N registers, M bytes spilled, K instructions", or "compiled" where the linker in use says nothing."""
        cubin, remarks = _link(self.ptx(arch), self.target(arch), ptxas_options=["-v"])
        registers = re.search(r"Used (\d+) registers", remarks)
        spills = re.search(r"(\d+) bytes spill stores", remarks)
        if registers is None or spills is None:
            return "compiled"
        return told(int(registers[1]), int(spills[1]), sum(instructions(cubin).values()))

    def bind(
        self, grid: tuple[int, int], *arguments: Tensor | int | ByValue, device: torch.device, keep: tuple[Tensor, ...] = ()
    ) -> Launch:
        """Fixes grid and arguments. The launch keeps `arguments` and `keep` alive."""
        if SIMULATED:
            return self._simulate(grid, arguments)
        index: int = torch.cuda.current_device() if device.index is None else device.index
        handle = self._on(index)
        words = _words(len(arguments))
        values = words(*map(_word, arguments))
        start = ctypes.addressof(values)
        pointers = words(*range(start, start + ctypes.sizeof(values), 8))
        for i in range(self.maps):
            pointers[i] = values[i]  # the map itself, not where its address lies
        return _launcher(handle, grid, self.threads, self.dynamic_shared, index, pointers, (values, arguments, keep))

    def _on(self, index: int) -> Any:
        """The driver's handle of this kernel on device `index`: loaded now, since a lazy load behind a blocked stream deadlocks."""
        if index not in self._handles:
            from cuda.bindings import driver

            _make_current(index)
            major, minor = torch.cuda.get_device_capability(index)
            cubin, entry = self.assemble(f"sm_{major}{minor}")
            module = _checked(driver.cuModuleLoadData(cubin))
            handle = _checked(driver.cuModuleGetFunction(module, entry.encode()))
            if self.dynamic_shared > STATIC_SHARED:
                most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                _checked(driver.cuFuncSetAttribute(handle, most, self.dynamic_shared))
            self._handles[index] = handle
        return self._handles[index]

    def _simulate(self, grid: tuple[int, int], arguments: tuple[Tensor | int | ByValue, ...]) -> Launch:
        configured = cuda.jit(self.function)[grid, (self.threads,), 0, self.dynamic_shared]
        values = tuple(Pointer(x) if isinstance(x, Tensor) else x for x in arguments)

        return simulated(configured, *values)


@cache
def _words(count: int) -> Any:
    """A C array of 8-byte words."""
    return ctypes.c_int64 * count


def _word(argument: Tensor | int | ByValue) -> int:
    """The 8 bytes that stand for an argument; of a ByValue, its address."""
    if isinstance(argument, Tensor):
        return argument.data_ptr()
    return argument.address if isinstance(argument, ByValue) else argument


def simulated(configured: Callable[..., None], *arguments: Any) -> Launch:
    """A launch in the simulator, without numpy's warnings of overflow and of nan, which are results here.

    Each CUDA thread is a Python thread, and a spinning one watches over their barriers: it must give way at once, not after 5 ms.
    """

    def launch() -> None:
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                configured(*arguments)
        finally:
            sys.setswitchinterval(before)

    return launch


def _launcher(handle: Any, grid: tuple[int, int], threads: int, shared: int, index: int, pointers: Any, kept: Any) -> Launch:
    from cuda.bindings import driver

    enqueue, stream_of = driver.cuLaunchKernel, torch._C._cuda_getCurrentRawStream
    across, down = grid
    parameters = ctypes.addressof(pointers)

    def launch() -> None:
        status = enqueue(handle, across, down, 1, threads, 1, 1, shared, stream_of(index), parameters, 0)[0]
        if status:
            again(status, pointers, kept)

    def again(status: Any, *alive: Any) -> None:
        """A thread that never used the GPU has no context: give it torch's, once."""
        if int(status) != INVALID_CONTEXT:
            _checked((status,))
        _make_current(index)
        _checked(enqueue(handle, across, down, 1, threads, 1, 1, shared, stream_of(index), parameters, 0))

    return launch


def _make_current(index: int) -> None:
    """The primary context, which is torch's, becomes this thread's where it has none or another device's."""
    from cuda.bindings import driver

    _checked(driver.cuInit(0))
    context = _checked(driver.cuDevicePrimaryCtxRetain(_checked(driver.cuDeviceGet(index))))
    if int(_checked(driver.cuCtxGetCurrent())) != int(context):
        _checked(driver.cuCtxSetCurrent(context))


def _checked(answer: tuple[Any, ...]) -> Any:
    """The driver's result. Raises RuntimeError with its name for the error."""
    from cuda.bindings import driver

    status, *rest = answer
    if status:
        _, name = driver.cuGetErrorName(status)
        _, text = driver.cuGetErrorString(status)
        raise RuntimeError(f"the CUDA driver answered {name.decode()} ({text.decode()})")
    return rest[0] if rest else None


def _link(ptx: str, arch: str, **options: Any) -> tuple[bytes, str]:
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
