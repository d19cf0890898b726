"""The interface of every backend.

A backend is a package with `probe(device) -> Probe` in its `__init__`, and one module per op whose `VARIANTS` maps a variant's name ("" is
the default) to a `Variant`. A backend of one file has `variants(op)` instead, which returns that mapping, empty for an op it lacks.
A variant has one function, `build(*inputs, out) -> bind`:

    build   reads only dtype, shape, alignment and device of the tensors; compiles; chooses the grid; may raise UnsupportedWorkload
    bind    (*inputs, out) -> launch: fixes the addresses; valid for all tensors of that dtype, shape, alignment and device
    launch  () -> None: enqueues the work on torch's current stream; neither allocates nor waits

A bind that is an `AtOnce` (calling.py) can also launch directly, without a launch object; calls use that.

This module does what is the same for all backends: argument checks, empty tensors, the current device, the cache of binds. A backend
contributes the kernel and its launch.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

from opwise.backends.calling import AtOnce as AtOnce
from opwise.backends.calling import Bind as Bind
from opwise.backends.calling import Launch as Launch
from opwise.backends.calling import calling
from opwise.ops.spec import OpSpec, is_transpose
from opwise.plain import LOW, plain

_grad = torch.is_grad_enabled
Build = Callable[..., Bind]


class BackendUnavailable(RuntimeError):
    """The backend cannot run here. reason: why. remedy: what to do about it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}: {remedy}")
        self.reason, self.remedy = reason, remedy

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.reason, self.remedy)


def require_gpu(device: torch.device) -> None:
    """Raises BackendUnavailable, with the remedy, unless `device` is a CUDA GPU of sm_80 or later."""
    if device.type != "cuda":
        raise BackendUnavailable(
            "there is no GPU to run it on", "use a CUDA device; without one, compile_only and `opwise check` compile it"
        )
    if not torch.cuda.is_available() or torch.version.cuda is None:
        raise BackendUnavailable("torch sees no GPU", "install a CUDA build of torch and a driver that fits it")
    if torch.cuda.get_device_capability(device) < (8, 0):
        raise BackendUnavailable("the GPU is older than sm_80, which the kernels' instructions need", "use an Ampere GPU or later")


class UnsupportedWorkload(ValueError):
    """This implementation does not support this shape, dtype or layout; another one may."""


@dataclass(frozen=True)
class Probe:
    """A backend's library versions on a device. stand_in: the CPU stand-in that runs the kernels, if any; its times mean nothing."""

    versions: Mapping[str, str]
    stand_in: str | None = None


@dataclass(frozen=True)
class Variant:
    """One implementation of an op in a backend. fault: a known error of its results. call: replaces the generic call.

    takes_strided: it is an operator of torch, which accepts any strides and any device. takes_transposed: it also accepts matrices that are
    transposes of row-major ones, x.t().
    """

    build: Build
    summary: str
    fault: str | None = None
    call: Callable[..., Tensor] | None = None
    takes_strided: bool = False
    takes_transposed: bool = False


class BackendModule(Protocol):
    """The interface of `backends/<name>/__init__.py`."""

    def probe(self, device: torch.device) -> Probe:
        """Imports the GPU library, which must not be imported earlier. Raises BackendUnavailable with the remedy."""


@dataclass
class Implementation:
    """One op in one backend in one variant, written `triton_jit/softmax` or `torch_eager/square:pow`."""

    backend: str
    op: OpSpec
    variant: str
    source: Variant
    device_type: str | None = None  # that it was loaded for; a kernel cannot read addresses of another device's memory
    _built: dict[Any, Bind] = field(default_factory=dict, repr=False)
    _calls: dict[Any, Callable[..., Tensor]] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return f"{self.backend}/{self.op.name}" + (f":{self.variant}" if self.variant else "")

    def prepare(self, *inputs: Tensor, out: Tensor) -> Launch:
        """Checks, compiles and binds. The result launches on torch's current stream and keeps the tensors alive.

        Raises TypeError or ValueError if the inputs do not fit the op, UnsupportedWorkload if this implementation does not support them.
        """
        self.op.check_inputs(*inputs)
        self._check_device(inputs[0])
        self._check_memory(*inputs)
        self.op.check_output(*inputs, out=out)
        self._check_memory(out, names=("out",))
        self._check_layout(*inputs, out)
        return self._bind(*inputs, out)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Allocates the output, launches and returns it. Raises as `prepare` does."""
        call = self._calls.get(key := self._key(inputs))
        return (call or self._call_for(key, inputs))(*inputs)

    def call_like(self, *inputs: Tensor) -> Callable[..., Tensor]:
        """The call for inputs of these shapes, dtypes, devices and alignments, contiguous and without gradient, without further checks.
        Raises as `prepare` does."""
        call = self._calls.get(key := self._key(inputs))
        return call or self._call_for(key, inputs)

    def _call_for(self, key: Any, inputs: tuple[Tensor, ...]) -> Callable[..., Tensor]:
        """Checks, then caches the call. A cached key needs no checks: they read only what it holds. Only plain tensors are cached."""
        self.op.check_inputs(*inputs)
        self._check_device(inputs[0])
        if self.source.call and self.source.takes_strided:
            call = self.source.call
        else:
            self._check_memory(*inputs)
            self._check_layout(*inputs)
            call = self.source.call or self._caller(inputs, key)
        if type(key) is tuple:
            self._calls[key] = call
        return call

    def _caller(self, inputs: tuple[Tensor, ...], key: Any) -> Callable[..., Tensor]:
        """The call, with everything built that the key determines."""
        out = self.op.empty_output(*inputs)
        self._bind(*inputs, out, key=key)  # builds
        bind = self._built.get((key, out.data_ptr() & 15))
        if bind is None:  # empty tensors: nothing is built

            def call(*inputs: Tensor) -> Tensor:
                out = self.op.empty_output(*inputs)
                self._bind(*inputs, out, key=key)()
                return out

            return call
        return _made_for(out.device, calling, bind, out)

    def _key(self, inputs: tuple[Any, ...]) -> Any:
        """All that a build may depend on. An argument that is not a plain tensor gives a new key, and is checked at each call."""
        try:
            if len(inputs) == 1 and not self.op.reads_precision:  # half the time of the general case below
                x = inputs[0]
                if (memory := x.data_ptr() if type(x) is Tensor else 0) < LOW:
                    if not plain(x):
                        return object()
                    memory = x.data_ptr()
                return x.shape, x.dtype, x.get_device(), memory & 15, x.is_contiguous(), x.is_neg(), x.requires_grad and _grad()
            key = []
            for x in inputs:
                if (memory := x.data_ptr() if type(x) is Tensor or type(x) is Parameter else 0) < LOW:
                    if not plain(x):
                        return object()
                    memory = x.data_ptr()
                rows = x.is_contiguous() or x.stride()
                key.append((x.shape, x.dtype, x.get_device(), memory & 15, rows, x.is_neg(), x.requires_grad and _grad()))
        except (AttributeError, RuntimeError):  # no tensor at all, or none with storage
            return object()
        return *key, torch.get_float32_matmul_precision() if self.op.reads_precision else None

    def _check_device(self, x: Tensor) -> None:
        if self.device_type not in (None, x.device.type) and not self.source.takes_strided:
            raise ValueError(f"{self.name}: the tensors are on {x.device}, this implementation was loaded for {self.device_type}: "
                             f"call .to({self.device_type!r}), or take opwise.implementation({self.name!r}, x.device)")  # fmt: skip

    def _check_memory(self, *tensors: Tensor, names: Sequence[str] = ()) -> None:
        """A negative bit is `_check_layout`'s, a device without memory `_check_device`'s."""
        for name, x in zip(names or self.op.inputs, tensors, strict=True):
            if not (x.is_neg() or x.device.type == "meta" or plain(x)):
                given = "has no memory of its own, as under torch.vmap" if type(x) is Tensor else f"is a {type(x).__name__}"
                raise TypeError(f"{self.name}: {name} {given}, a plain torch.Tensor is taken, whose memory holds its value: "
                                "hand one in, or have torch compute it, as opwise's functions do")  # fmt: skip

    def _check_layout(self, *tensors: Tensor) -> None:
        if self.source.takes_strided:
            return
        for name, x in zip((*self.op.inputs, "out"), tensors, strict=False):
            if x.is_neg():  # as the imaginary part of a conjugate: memory holds the negated values
                raise ValueError(f"{self.name}: {name} has the negative bit, which kernels do not see: call {name}.resolve_neg()")
            transposed = len(self.op.layouts) > 1 and name != "out" and is_transpose(x)
            if not (x.is_contiguous() or (transposed and self.source.takes_transposed)):
                problem = UnsupportedWorkload if transposed else ValueError  # other variants accept transposes
                ways = "row-major storage and its transpose are" if self.source.takes_transposed else "row-major storage is"
                raise problem(f"{self.name}: {name} has strides {x.stride()} for shape {tuple(x.shape)}, "
                              f"{ways} taken: call {name}.contiguous()")  # fmt: skip

    def _bind(self, *tensors: Tensor, key: Any = None) -> Launch:
        *inputs, out = tensors
        if out.numel() == 0:
            return _do_nothing
        if any(x.numel() == 0 for x in inputs):
            value = self.op.value_of_nothing
            return lambda: out.fill_(value)  # type: ignore[arg-type,return-value]
        key = (key or self._key(tuple(inputs)), out.data_ptr() & 15)
        bind = self._built.get(key)
        device = out.device
        if bind is None:
            with _current(device):
                bind = self._built[key] = self.source.build(*inputs, out)
        return _made_for(device, bind, *inputs, out)


def _do_nothing() -> None:
    """The launch of an empty output."""


def _current(device: torch.device) -> Any:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _several_gpus(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.device_count() > 1


def _made_for(device: torch.device, make: Callable[..., Callable[..., Any]], *given: Any) -> Callable[..., Any]:
    """make(*given), a launch or a call, made and run with `device` current."""
    if not _several_gpus(device):
        return make(*given)
    with _current(device):  # make() may load the kernel, into the current device's context
        return _on_device(device, make(*given))


def _on_device(device: torch.device, run: Callable[..., Any]) -> Callable[..., Any]:
    """With several GPUs: makes the device current for each launch, if the caller's current device is another."""
    index, current = device.index, torch._C._cuda_getDevice  # torch.cuda.current_device also checks CUDA's initialisation on each call

    def run_there(*given: Tensor) -> Any:
        if current() == index:
            return run(*given)
        with torch.cuda.device(index):
            return run(*given)

    return run_there


def variants_of(module: types.ModuleType) -> Mapping[str, Variant]:
    """The module's VARIANTS. Raises AttributeError without the unnamed variant."""
    variants: Mapping[str, Variant] = module.VARIANTS
    if "" not in variants:
        raise AttributeError(f"{module.__name__}.VARIANTS lacks the unnamed variant '', the one to use")
    return variants
