"""Compiles a Python function with Numba and launches it with little host overhead.

A kernel here takes 8-byte values only: addresses (as int64, or as `CPointer`s) and int64 sizes. So a parameter is one
register pair (a Numba array takes seven), `data_ptr()` is an argument as it is, and arguments are packed once, at bind.
The steps: `cuda.compile` (Python -> PTX), cuda.core's linker (PTX -> cubin), a driver function handle for each device, and driver.py's
launch on torch's current stream. Cubins are cached on disk (cubins.py). `kernel[grid, block, stream](...)` resolves types and
streams anew at each launch: 7 to 20 times the time of this.

On a CPU a launch runs the kernel's Python, in fibres (numba_on_cpu).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opwise.backends import numba_on_cpu, scratch
from opwise.backends.calling import AtOnce
from opwise.backends.cubin import instructions, told
from opwise.backends.numba_cuda.common.by_value import ByValue, in_clusters, with_maps
from opwise.backends.numba_cuda.common.compiler import compiled, cuda
from opwise.backends.numba_cuda.common.cubins import Assembled, kept_or
from opwise.backends.numba_cuda.common.driver import Enqueue, Room, enqueuer, link, loaded, runner
from opwise.backends.protocol import Launch


def inlined(function: Callable[..., Any]) -> Any:
    """A device function inlined before type inference. Compiled on its own, it would need a GPU, even to compile."""
    return cuda.jit(device=True, inline="always")(function)


@dataclass(eq=False)
class Kernel:
    """A kernel of 8-byte parameters and a fixed block size. `dynamic_shared` bytes are asked for at each launch.

    `min_blocks`: minimum resident blocks an SM, which limits registers. Compiled once for an architecture, loaded once for a device.
    The first `maps` parameters are tensor maps by value: the kernel has their addresses, a launch takes them as ByValue.
    `cluster` blocks share a thread block cluster; their number must divide the grid's.
    `only`: the one architecture it runs on, whose own instructions (sm_90a's) it may then use.
    `cooperative`: its blocks wait for one another, so a launch runs all of them at once.
    """

    function: Callable[..., None]
    parameters: tuple[Any, ...]
    threads: int
    min_blocks: int = 1
    dynamic_shared: int = 0
    maps: int = 0
    only: str | None = None
    cluster: int = 1
    cooperative: bool = False
    _cubins: dict[str, Assembled] = field(default_factory=dict, repr=False)
    _enqueuers: dict[tuple[tuple[int, int], int, int], Enqueue] = field(default_factory=dict, repr=False)
    _handles: dict[int, int] = field(default_factory=dict, repr=False)

    def ptx(self, arch: str) -> str:
        """PTX for "sm_90". Raises ValueError on what is no architecture."""
        found = re.fullmatch(r"sm_(\d+)(\d)", arch)
        if found is None:
            raise ValueError(f"{arch!r} is no architecture: write sm_80, sm_90 or sm_100")
        cc: tuple[Any, ...] = (int(found[1]), int(found[2]), *(["a"] if self.only else []))
        bounds = (self.threads, self.min_blocks)
        text = compiled(self.function, self.parameters, cc, bounds)
        return in_clusters(with_maps(text, self.maps), self.cluster)

    def runs_on(self, arch: str) -> bool:
        return self.only in (None, arch)

    def target(self, arch: str) -> str:
        """What the linker calls `arch`. Raises ValueError on an architecture that the kernel does not run on."""
        if not self.runs_on(arch):
            raise ValueError(f"{self.function.__qualname__} runs on {self.only} alone, given {arch}: use another kernel")
        return f"{arch}a" if self.only else arch

    def assemble(self, arch: str) -> Assembled:
        """cubin, and the name of its entry: from disk, where a process left them before."""
        if arch not in self._cubins:
            self._cubins[arch] = kept_or(lambda: self._assembled(arch), self, arch)
        return self._cubins[arch]

    def _assembled(self, arch: str) -> Assembled:
        ptx = self.ptx(arch)
        entry = re.search(r"\.entry\s+([\w$]+)", ptx)
        if entry is None:
            raise RuntimeError(f"Numba compiled {self.function.__qualname__} to PTX without an entry")
        return link(ptx, self.target(arch))[0], entry[1]

    def report(self, arch: str) -> str:
        """ "N registers, M bytes spilled, K instructions", or "compiled" where the linker in use says nothing."""
        cubin, remarks = link(self.ptx(arch), self.target(arch), ptxas_options=["-v"])
        registers = re.search(r"Used (\d+) registers", remarks)
        spills = re.search(r"(\d+) bytes spill stores", remarks)
        if registers is None or spills is None:
            return "compiled"
        return told(int(registers[1]), int(spills[1]), sum(instructions(cubin).values()))

    def bind(
        self,
        grid: tuple[int, int],
        *arguments: Tensor | int | ByValue,
        device: torch.device,
        keep: tuple[Tensor, ...] = (),
        shared: int | None = None,
    ) -> Launch:
        """Fixes grid and arguments. The launch keeps `arguments` and `keep` alive. `shared`: fewer bytes than `dynamic_shared`."""
        if device.type == "cpu":
            return numba_on_cpu.bind(self, grid, *arguments, shared=shared)
        index = _index(device)
        room = Room(len(arguments))
        room.values[:] = [*map(_word, arguments)]
        for i in range(self.maps):
            room.by_value(i, room.values[i])  # the map itself, not where its address lies
        enqueue, at = self._enqueuer(grid, index, shared), room.at

        def launch(alive: object = (room, arguments, keep)) -> None:
            enqueue(at)

        return launch

    def fixed(
        self,
        grid: tuple[int, int],
        *sizes: int,
        device: torch.device,
        shared: int | None = None,
        scratch_bytes: int = 0,
        zeroed: int = scratch.COUNTER_BYTES,
    ) -> AtOnce:
        """The bind of a kernel whose parameters are addresses of tensors, then `sizes`, then, where it asks for any, that of scratch, of
        which the first `zeroed` bytes are 0 before and after."""
        if device.type == "cpu":
            return numba_on_cpu.fixed(self, grid, *sizes, shared=shared, scratch_bytes=scratch_bytes, zeroed=zeroed)

        def launch_of(tensors: tuple[Tensor, ...], *more: int) -> Launch:
            return self.bind(grid, *tensors, *sizes, *more, device=device, shared=shared)

        index, address = _index(device), Tensor.data_ptr
        run = runner(self._enqueuer(grid, index, shared), len(self.parameters))

        def run_with(tensors: tuple[Tensor, ...], *more: int) -> None:
            run(*map(address, tensors), *sizes, *more)

        return scratch.bound_with(launch_of, run_with, scratch_bytes, device, zeroed)

    def _enqueuer(self, grid: tuple[int, int], index: int, shared: int | None) -> Enqueue:
        """Made once for all launches over a grid: a product's call binds anew each time."""
        key = grid, index, self.dynamic_shared if shared is None else shared
        if key not in self._enqueuers:
            self._enqueuers[key] = enqueuer(self._on(index), grid, self.threads, key[2], index, self.cooperative)
        return self._enqueuers[key]

    def _on(self, index: int) -> int:
        """The driver's handle of this kernel on device `index`."""
        if index not in self._handles:
            major, minor = torch.cuda.get_device_capability(index)
            self._handles[index] = loaded(*self.assemble(f"sm_{major}{minor}"), index, self.dynamic_shared, self.cluster)
        return self._handles[index]


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _word(argument: Tensor | int | ByValue) -> int:
    """The 8 bytes that stand for an argument; of a ByValue, its address."""
    if isinstance(argument, Tensor):
        return argument.data_ptr()
    return argument.address if isinstance(argument, ByValue) else argument
