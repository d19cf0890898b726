"""`opwise.softmax(x)` and the other ops, computed by the backend that the stored runs choose for a busy stream.

Torch eager computes workloads without a stored figure, and strided tensors, with one warning per process. Without a warning it computes
what the kernels do not take: CPU tensors, calls under autocast or forward-mode autograd, other dtypes and numbers of dimensions, subclasses
of Tensor, tensors whose memory does not hold their value (`plain`), and shapes first met inside a CUDA graph's capture. A forced backend
(`use`, OPWISE_BACKEND) computes plain tensors or raises an error that says why it cannot. For gradients, the backward pass is torch's
(gradients.py).

torch.jit.trace, make_fx and torch.fx.symbolic_trace record torch's functions, or traced.py's operator where a backend is forced: of a
kernel they would record its output alone, as a constant. make_fx sets a flag, which each call looks at. Under torch.jit.trace sizes are
tensors, so no key is known, and `find` handles it. traced.py handles torch.compile.

For small tensors, whose kernels are shorter than their calls, the dispatch cost decides. Up to the size below which torch eager wins on
every record, it is one comparison; above it, one look-up by shape, dtype and device. Nothing here waits for the GPU or measures.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx import Proxy
from torch.fx import _symbolic_trace as _fx
from torch.nn import Parameter

from opwise.backends import BACKENDS, implementation, probe
from opwise.choosing.gradients import FUNCTIONS
from opwise.ops import OPS
from opwise.plain import LOW, astray, plain

ENVIRONMENT = "OPWISE_BACKEND"
INVARIANT = "(batch-invariant)"  # in a backend's place: whichever is, and is the fastest
MOST_KEYS = 4096  # a program whose shapes never repeat must not fill the memory
MUL_UP_TO = (
    2**21
)  # elements: x.mul(x) costs less to call than torch.square(x); its 16-bit kernel takes 3 % longer, once it is the longer part

# Read when opwise is imported: os.environ costs a microsecond. A context variable is a thread's, and an asyncio task's, own.
_forced: ContextVar[str | None] = ContextVar("opwise_backend", default=os.environ.get(ENVIRONMENT) or None)
_is_forced = _forced.get
_lock = threading.RLock()  # one thread reads the store and builds kernels, the others wait for what it finds
_grad, _autocast = torch.is_grad_enabled, torch.is_autocast_enabled
_precision = torch._C._get_float32_matmul_precision  # torch.get_float32_matmul_precision calls it, for 60 ns
_mean, _softmax, _gelu = torch.mean, torch.softmax, torch.nn.functional.gelu  # an attribute of torch costs 30 ns to find
Call = Callable[..., Tensor]


@contextmanager
def use(backend: str | None = None, *, invariant: bool = False) -> Iterator[None]:
    """Context manager: in this thread, `backend` computes every op called through opwise; or with invariant=True an implementation that
    `opwise run --facts` found batch-invariant, the same for workloads that differ only in their first size. Raises ValueError for an
    unknown name, TypeError for both or neither. The calls raise BackendUnavailable, UnsupportedWorkload or ValueError for inputs that it
    cannot compute, and NothingMeasured if no backend is known to be batch-invariant there."""
    if (backend is None) != invariant:
        raise TypeError("use() takes a backend's name or invariant=True, one of the two")
    token = _forced.set(INVARIANT if backend is None else _known(backend, "use()"))
    try:
        yield
    finally:
        _forced.reset(token)


def _known(backend: str, where: str) -> str:
    if backend not in BACKENDS:
        raise ValueError(f"{where} names {backend!r}, which is no backend: known are {', '.join(BACKENDS)}")
    return backend


def recorded() -> bool:
    """Does torch.jit.trace or make_fx record what this thread calls?"""
    proxies = torch._C._TorchDispatchModeKey.PROXY
    modes = torch._C._get_dispatch_mode(proxies), torch._ops._get_dispatch_mode_pre_dispatch(proxies)  # type: ignore[no-untyped-call]
    return torch._C._get_tracing_state() is not None or any(mode is not None for mode in modes)


class Dispatcher:
    """One op's choices. `calls`: key -> the call that computes it. Torch eager computes tensors of up to `small` elements in rows of up to
    `columns`, since it wins there on every record; -1 until the figures of the machine's GPUs have been read. Products have no such bound
    (`bounded`): comparing three sizes costs as much as the look-up. `traced`: see traced.py."""

    __slots__ = ("bounded", "calls", "columns", "eager", "forced", "invariant", "op", "sized", "small", "traced")

    def __init__(self, op: str, eager: Call, bounded: bool = True) -> None:
        self.op, self.eager, self.traced, self.bounded = op, eager, eager, bounded
        self.forget()

    def forget(self) -> None:
        """Resets the choices, so that the stored runs are read again."""
        self.calls: dict[Any, Call] = {}
        self.forced: dict[tuple[str, str], Call] = {}
        self.invariant: dict[tuple[str, str], str] = {}
        self.sized, self.small, self.columns = not self.bounded, -1, 0

    def find(self, key: Any, *inputs: Tensor, gradient: bool = False) -> Call:
        """The call for inputs with a new key; kept for later calls, unless a graph capture restricts the choice now. gradient: whether one
        is wanted."""
        from opwise.choosing.selection import selected

        if torch._C._get_tracing_state() is not None:
            return self.in_a_trace
        with _lock:
            call = self.calls.get(key)  # another thread may have found it meanwhile
            if call is None:
                call, keep = selected(self, inputs, gradient)
                if keep:
                    if len(self.calls) >= MOST_KEYS:
                        self.calls.clear()
                    self.calls[key] = call
        return call

    def in_a_trace(self, *inputs: Tensor) -> Tensor:
        """Torch eager's, from one line for every caller: torch.jit.trace traces again without gradients, and compares lines too."""
        return self.eager(*inputs)

    def left(self, *inputs: Tensor) -> Tensor:
        """Torch eager's result, for inputs that it computes whatever was measured. Warns once per op for strided tensors on a GPU."""
        if any(x.is_cuda and x.layout is torch.strided and not x.is_contiguous() for x in inputs):
            from opwise.choosing.selection import Fallback, tell

            tell(f"strided {self.op}", f"torch eager computes opwise.{self.op} of strided tensors, as x.t() and x[:, :8] are: kernels take "
                 "contiguous ones, and a product's transposed factors", Fallback)  # fmt: skip
        return self.eager(*inputs)

    def differentiable(self, *inputs: Tensor) -> Tensor:
        """The result for tensors of which some require grad; contiguous, except for a product's factors."""
        each = ((x.shape, x.dtype, x.get_device(), x.data_ptr() & 15, x.is_contiguous() or x.stride()) for x in inputs)
        key = (True, *each, _precision())
        return (self.calls.get(key) or self.find(key, *(x.detach() for x in inputs), gradient=True))(*inputs)

    def _warn_of_stand_in(self, backend: str, device: torch.device) -> None:
        if stand_in := probe(backend, device).stand_in:
            from opwise.choosing.selection import Fallback, tell

            tell(f"forced {backend}", f"{backend} is forced on {device.type} tensors: {stand_in} stands in for a GPU, which takes seconds "
                 "for what takes torch eager a millisecond", Fallback)  # fmt: skip

    def _invariant(self, *inputs: Tensor) -> str:
        """The implementation that is chosen among the batch-invariant ones. Raises NothingMeasured, or what is wrong with the inputs."""
        from opwise.choosing.selection import invariant

        OPS[self.op].check_inputs(*(x.detach() for x in inputs))  # three dimensions would be the workload of the first two
        key = str(OPS[self.op].workload_of(*inputs)), str(inputs[0].device)
        if key not in self.invariant:
            with _lock:
                self.invariant[key] = invariant(*key)
        return self.invariant[key]

    def unusual(self, *inputs: Any) -> Tensor:
        """The result by a forced backend, which takes plain tensors outside of autocast, or for a subclass of Tensor."""
        backend = _is_forced()
        if any(isinstance(x, Proxy) for x in inputs):
            return (self.eager if backend in (None, "torch_eager") else self.traced)(*inputs)
        if not all(isinstance(x, Tensor) for x in inputs):
            OPS[self.op].check_inputs(*inputs)  # raises
        if torch.compiler.is_compiling():  # torch.export hands in fake tensors
            return self.traced(*inputs)
        if forward_ad._current_level >= 0 or not all(map(plain, inputs)) or torch.is_autocast_enabled(inputs[0].device.type):
            return self.eager(*inputs)
        if backend not in (None, "torch_eager") and recorded():
            return self.traced(*inputs)
        name = self._invariant(*inputs) if backend == INVARIANT else f"{backend or 'torch_eager'}/{self.op}"
        if name == f"torch_eager/{self.op}":
            return self.eager(*inputs)
        call = self.forced.get((name, inputs[0].device.type))
        if call is None:
            _known(backend := name.partition("/")[0], ENVIRONMENT)
            call = implementation(name, inputs[0].device)
            self._warn_of_stand_in(backend, inputs[0].device)
            self.forced[name, inputs[0].device.type] = call
        if _grad() and any(x.requires_grad for x in inputs):
            return FUNCTIONS[self.op].apply(call, *inputs)  # type: ignore[no-any-return]
        return call(*inputs)


def _softmax_eager(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def _gelu_eager(x: Tensor) -> Tensor:
    return _gelu(x, approximate="tanh")


_SQUARE, _MEAN, _GELU = Dispatcher("square", torch.square), Dispatcher("mean", torch.mean), Dispatcher("gelu", _gelu_eager)
_SOFTMAX, _MATMUL = Dispatcher("softmax", _softmax_eager), Dispatcher("matmul", torch.matmul, bounded=False)
DISPATCHERS = {d.op: d for d in (_SQUARE, _MEAN, _GELU, _SOFTMAX, _MATMUL)}


# The functions below are alike but for the op, and are written out because a shared one would cost each call another call. Small tensors
# take the shortest of torch's own spellings. An address of 0, or none that may be asked for: see `plain`. Dynamo does not trace them:
# `_torchdynamo_inline` (see traced.py) hands it another function.


def square(x: Tensor) -> Tensor:
    """x * x, elementwise. x: a tensor of any shape; the result has its shape and dtype."""
    if type(x) is not Tensor or _is_forced() is not None:
        return _SQUARE.unusual(x)
    if x.numel() <= _SQUARE.small:
        return x.mul(x) if x.numel() <= MUL_UP_TO else torch.square(x)
    try:
        shape, memory = x.shape, x.data_ptr() if x.is_contiguous() else 0
    except RuntimeError:
        memory = 0
    if (memory < LOW and astray(x, memory)) or x.is_neg() or _autocast() or forward_ad._current_level >= 0 or _fx._is_fx_tracing_flag:
        return _SQUARE.left(x)
    if x.requires_grad and _grad():
        return _SQUARE.differentiable(x)
    key = (shape, x.dtype, x.get_device(), memory & 15)
    return (_SQUARE.calls.get(key) or _SQUARE.find(key, x))(x)


def mean(x: Tensor) -> Tensor:
    """The mean over all elements, as a 0-d tensor of x's dtype."""
    if type(x) is not Tensor or _is_forced() is not None:
        return _MEAN.unusual(x)
    if x.numel() <= _MEAN.small:
        return _mean(x)
    try:
        shape, memory = x.shape, x.data_ptr() if x.is_contiguous() else 0
    except RuntimeError:
        memory = 0
    if (memory < LOW and astray(x, memory)) or x.is_neg() or _autocast() or forward_ad._current_level >= 0 or _fx._is_fx_tracing_flag:
        return _MEAN.left(x)
    if x.requires_grad and _grad():
        return _MEAN.differentiable(x)
    key = (shape, x.dtype, x.get_device(), memory & 15)
    return (_MEAN.calls.get(key) or _MEAN.find(key, x))(x)


def gelu(x: Tensor) -> Tensor:
    """gelu in its tanh form, elementwise. x: a tensor of any shape; the result has its shape and dtype."""
    if type(x) is not Tensor or _is_forced() is not None:
        return _GELU.unusual(x)
    if x.numel() <= _GELU.small:
        return _gelu(x, approximate="tanh")
    try:
        shape, memory = x.shape, x.data_ptr() if x.is_contiguous() else 0
    except RuntimeError:
        memory = 0
    if (memory < LOW and astray(x, memory)) or x.is_neg() or _autocast() or forward_ad._current_level >= 0 or _fx._is_fx_tracing_flag:
        return _GELU.left(x)
    if x.requires_grad and _grad():
        return _GELU.differentiable(x)
    key = (shape, x.dtype, x.get_device(), memory & 15)
    return (_GELU.calls.get(key) or _GELU.find(key, x))(x)


def softmax(x: Tensor) -> Tensor:
    """softmax over the last dimension. x: a tensor of any shape; the result has its shape and dtype."""
    if type(x) is not Tensor or _is_forced() is not None:
        return _SOFTMAX.unusual(x)
    if x.numel() <= _SOFTMAX.small and (x.dim() == 0 or x.size(-1) <= _SOFTMAX.columns):
        return _softmax(x, -1)
    try:
        shape, memory = x.shape, x.data_ptr() if x.is_contiguous() else 0
    except RuntimeError:
        memory = 0
    if (memory < LOW and astray(x, memory)) or x.is_neg() or _autocast() or forward_ad._current_level >= 0 or _fx._is_fx_tracing_flag:
        return _SOFTMAX.left(x)
    if x.requires_grad and _grad():
        return _SOFTMAX.differentiable(x)
    key = (shape, x.dtype, x.get_device(), memory & 15)
    return (_SOFTMAX.calls.get(key) or _SOFTMAX.find(key, x))(x)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, accumulated in float32. a: (..., M, K), b: (K, N), of one dtype; torch eager computes other shapes. Either may be a contiguous
    matrix's transpose, as in x @ w.t(). float32 factors are rounded to TF32 if torch's own precision switch allows it."""
    if type(a) is not Tensor or (type(b) is not Tensor and type(b) is not Parameter) or _is_forced() is not None:
        return _MATMUL.unusual(a, b)
    try:
        first, second, left, right = a.shape, b.shape, a.data_ptr(), b.data_ptr()
    except RuntimeError:
        left = right = 0
    if (left < LOW and astray(a, left)) or (right < LOW and astray(b, right)) or a.is_neg() or b.is_neg():
        return _MATMUL.left(a, b)
    if _autocast() or forward_ad._current_level >= 0 or _fx._is_fx_tracing_flag:
        return _MATMUL.left(a, b)
    if (a.requires_grad or b.requires_grad) and _grad():
        return _MATMUL.differentiable(a, b)
    key = (first, second, a.dtype, b.dtype, a.get_device(), b.get_device(), left & 15, right & 15, _precision(),
           a.is_contiguous() or a.stride(), b.is_contiguous() or b.stride())  # fmt: skip
    return (_MATMUL.calls.get(key) or _MATMUL.find(key, a, b))(a, b)
