"""From a Helion kernel and a configuration to launches of what Helion wrote.

Helion turns a kernel into two functions of Python: a Triton kernel, and a host function that hands it to a launcher together with its
grid, arguments and options. `compile_config` gives the host function, which takes another launcher in the place of its own: here one that
only takes down what it is handed. What was taken down is compiled at build and launched as opwise's own Triton kernels are, so that a
launch costs no more than theirs; `called` keeps Helion's own way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import helion
import torch
from opwise.backends.protocol import Bind, Build, Launch
from opwise.backends.triton_jit.common.launch import INTERPRETING, Grid
from opwise.backends.triton_jit.common.launch import built as built_in_triton
from opwise.backends.triton_jit.common.launch import built_of_one as built_of_one_in_triton
from opwise.backends.triton_jit.common.specimen import POINTERS, Specimen
from opwise.backends.triton_jit.common.specimen import report as report_of_triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

MOST = 2**31 - 2**16  # elements that 32 bits count to, the last tile's end included; Helion's own limit, 2^31 - 1, leaves that out


@cache
def _kernel(function: Callable[..., None], wide: bool, static: bool, precision: str) -> Any:
    """All that the environment may ask of Helion instead is said here: what runs is what the source says."""
    return helion.kernel(
        function, backend="triton", ref_mode=helion.RefMode.OFF, fast_math=False, static_shapes=static, dot_precision=precision,
        index_dtype=torch.int64 if wide else torch.int32,
    )  # fmt: skip


@dataclass(frozen=True)
class Way:
    """How a kernel is compiled. static: for these sizes alone, as Helion does by itself, which leaves masks out where tiles fit; else sizes
    and strides are arguments."""

    function: Callable[..., None]
    config: dict[str, Any]
    static: bool = True
    precision: str = "ieee"

    def kernel(self, tensors: Sequence[Tensor]) -> Any:
        return _kernel(self.function, any(x.numel() > MOST for x in tensors), self.static, self.precision)

    def bound(self, *given: Any) -> Callable[..., None]:
        """Helion's host function for arguments like these."""
        kernel = self.kernel([x for x in given if isinstance(x, Tensor)])
        host: Callable[..., None] = kernel.bind(given).compile_config(helion.Config(**self.config))
        return host


@dataclass(frozen=True)
class Plan:
    """What Helion's host function hands to its launcher."""

    kernel: Any
    grid: Grid
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


def planned(way: Way, *given: Any) -> Plan:
    """given: the function's arguments. Launches nothing."""
    return _taken_down(way.bound(*given), given)


def _taken_down(host: Callable[..., None], given: Sequence[Any]) -> Plan:
    taken: list[Plan] = []

    def take_down(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        x, y, z = (*grid, 1, 1)[:3]
        taken.append(Plan(kernel, (x, y, z), arguments, options))

    host(*given, _launcher=take_down)
    (plan,) = taken
    return plan


def built(way: Way, tensors: tuple[Tensor, ...], *more: Any, views: Sequence[Tensor] | None = None) -> Bind:
    """Compiles for tensors like these, and loads. views: what the kernel takes in their place, of the same memory; more: its constants."""
    views = tensors if views is None else views
    host = way.bound(*views, *more)
    plan = _taken_down(host, (*views, *more))
    if any(isinstance(x, TensorDescriptor) for x in plan.arguments):  # which the host function makes, of tensors that are their own views
        bind = built_in_triton(plan.kernel, plan.grid, *plan.arguments, **plan.options)
        return lambda *tensors: bind(*_taken_down(host, (*tensors, *more)).arguments)
    at = [next((i for i, view in enumerate(views) if x is view), None) for x in plan.arguments]
    if at[:2] == [0, 1] and len(views) == 2 and all(i is None for i in at[2:]):
        return built_of_one_in_triton(plan.kernel, plan.grid, *plan.arguments, **plan.options)
    bind = built_in_triton(plan.kernel, plan.grid, *plan.arguments, **plan.options)
    order = [(i, x if i is None else None) for i, x in zip(at, plan.arguments, strict=True)]  # which keeps no sample's memory

    def bind_these(*tensors: Tensor) -> Launch:
        return bind(*(x if i is None else tensors[i] for i, x in order))

    return bind_these


def called(way: Way, tensors: tuple[Tensor, ...], *more: Any, view: Callable[[Tensor], Tensor] = lambda x: x) -> Bind:
    """Helion's host function at each launch, as a user of Helion has it who keeps what `compile_config` gave."""
    if INTERPRETING:
        return built(way, tensors, *more, views=tuple(map(view, tensors)))
    host = way.bound(*map(view, tensors), *more)

    def compile_first(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        _ = kernel.warmup(*arguments, grid=grid, launch_cooperative_grid=False, **options).run

    def bind(*tensors: Tensor) -> Launch:
        given = (*map(view, tensors), *more)
        host(*given, _launcher=compile_first)

        def launch() -> None:
            host(*given)

        return launch

    return bind


def in_float32(build: Build) -> Build:
    """Where Triton's interpreter runs it, a build of bfloat16 is one of float32, of converted tensors: the interpreter multiplies the bits
    of a bfloat16, and truncates to one. So there the kernel's sums are checked, and its conversions are not."""
    if not INTERPRETING:
        return build

    def build_there(*tensors: Tensor) -> Bind:
        if tensors[0].dtype != torch.bfloat16:
            return build(*tensors)
        bind = build(*(x.float() for x in tensors))

        def bind_converted(*tensors: Tensor) -> Launch:
            def launch() -> None:
                *inputs, out = (x.float() for x in tensors)
                bind(*inputs, out)()
                tensors[-1].copy_(out)

            return launch

        return bind_converted

    return build_there


def _type_of(x: Any) -> str:
    if isinstance(x, TensorDescriptor):
        return f"tensordesc<{_type_of(x.base)[1:]}{list(x.block_shape)}>"
    return POINTERS[str(x.dtype).removeprefix("torch.")] if isinstance(x, Tensor) else "i32" if abs(x) < 2**31 else "i64"


def report(plan: Plan, arch: str) -> str:
    """ "N registers, M bytes spilled, K instructions" of what Triton makes of it for `arch`, without a GPU. A size that is 1 is a constant,
    one that 16 divides is known to be, as Triton has it at a launch."""
    names, constexprs = plan.kernel.arg_names, {p.name for p in plan.kernel.params if p.is_constexpr}
    given = dict(zip(names, plan.arguments, strict=True))
    constants = {name: x for name, x in given.items() if name in constexprs or (not isinstance(x, Tensor) and x == 1)}
    types = {name: _type_of(x) for name, x in given.items() if name not in constants}
    odd = tuple(name for name in types if isinstance(given[name], int) and given[name] % 16)
    return report_of_triton(Specimen(plan.kernel, types, constants, plan.options, odd), arch)
