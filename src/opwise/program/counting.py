"""`with opwise.recording() as seen:` counts the torch calls within it, in this thread and in its backward passes.

A dispatch mode sees every call of torch's dispatcher before the kernels. For calls that are an op, or contain one, it notes sizes, strides
and the like, and passes all calls on. It reads no data, so nothing waits for the GPU. torch.compile'd functions run uncompiled (torch's own
rule for dispatch modes), and are marked."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from opwise.ops import OPS
from opwise.program.calls import Call, Recording

# What a call is: (op, "" or what it is instead of the op, its inputs), or None for what is not counted.
Read = Callable[[tuple[Any, ...], Mapping[str, Any]], tuple[str, str, tuple[Tensor, ...]] | None]
_in_backward, _grad, _precision = torch._C._current_graph_task_id, torch.is_grad_enabled, torch._C._get_float32_matmul_precision
DYNAMO = "torch._dynamo.eval_frame"


def _of_two(near: str, first: int = 0) -> Read:
    return lambda args, kwargs: ("matmul", near, args[first : first + 2])


def _square_of_power(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    exponent = args[1]  # a tensor is not looked into: that would wait for the GPU
    return ("square", "", args[:1]) if isinstance(exponent, int | float) and exponent == 2 else None


def _square_of_product(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return ("square", "", args[:1]) if args[0] is args[1] else None


def _gelu(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return "gelu", "" if kwargs.get("approximate") == "tanh" else "gelu by erf: opwise.gelu is the tanh form", args[:1]


def _softmax(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    x, dim, to_float = args
    near = "" if dim in (-1, x.dim() - 1) else f"softmax over dimension {dim} of {x.dim()}: opwise.softmax takes the last"
    return "softmax", "softmax of 16 bits to float32" if to_float else near, (x,)


def _mean(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    x, dims = args[0], args[1] if len(args) > 1 else ()
    some = 0 < len(dims or ()) < x.dim()
    other = kwargs.get("dtype") not in (None, x.dtype)
    return "mean", "mean over some dimensions: opwise.mean takes all" if some else "mean in another dtype" if other else "", (x,)


def _attention(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return "softmax", "scaled_dot_product_attention: softmax between two products, in one kernel", args[:3]


def _encoder_layer(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return "matmul", "a whole layer in one function (torch.nn.TransformerEncoderLayer's fast path)", args[:1]


BATCHED = "a product a batch: opwise.matmul takes two matrices"
READ: Mapping[str, Read] = {
    "mm": _of_two(""),
    "addmm": _of_two("a bias is added (nn.Linear): opwise.matmul multiplies alone", first=1),
    "linear": _of_two("a bias may be added (nn.Linear): opwise.matmul multiplies alone"),
    "bmm": _of_two(BATCHED),
    "baddbmm": _of_two(BATCHED, first=1),
    "mv": _of_two("a matrix times a vector: opwise.matmul takes two matrices"),
    "pow": _square_of_power,
    "mul": _square_of_product,
    "gelu": _gelu,
    "_softmax": _softmax,
    "_log_softmax": lambda args, kwargs: ("softmax", "log_softmax", args[:1]),
    "mean": _mean,
    **dict.fromkeys(
        (f"_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn", "fused")), _attention
    ),
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_transformer_encoder_layer_fwd": _encoder_layer,
}  # fmt: skip


@cache
def watched() -> Mapping[Any, tuple[str, Read]]:
    """torch's functions -> how to read their calls."""
    found: dict[Any, tuple[str, Read]] = {}
    for name, read in READ.items():
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            found[getattr(packet, overload)] = f"aten.{name}", read
    return found


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`counts`: alike calls -> how many; `dispatched`: all calls. Per overload of READ's functions."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[tuple[Any, ...]] = Counter()
        self.dispatched = 0
        self.watched = watched()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        self.dispatched += 1
        kwargs = kwargs or {}
        if (known := self.watched.get(func)) is not None:
            with contextlib.suppress(Exception):  # of whatever kind a tensor is: no reason to stop the program
                self._count(*known, args, kwargs)
        return func(*args, **kwargs)

    def _count(self, function: str, read: Read, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if (found := read(args, kwargs)) is None:
            return
        op, near, inputs = found
        wanted, of_inputs = False, []
        for x in inputs:
            if x.layout is not torch.strided:
                return
            wanted = wanted or x.requires_grad
            of_inputs.append((x.shape, x.stride(), x.dtype, x.is_contiguous(), _address(x) & 15, x.is_cuda))
        gradient = "backward" if _in_backward() != -1 else "wanted" if wanted and _grad() else ""
        self.counts[function, op, near, tuple(of_inputs), gradient, _compiled(), _precision()] += 1

    def calls(self) -> tuple[Call, ...]:
        """The calls, the most frequent first."""
        return tuple(_call(key, calls) for key, calls in self.counts.most_common())


def _address(x: Tensor) -> int:
    """0 for what has none: fake tensors, subclasses without storage of their own."""
    try:
        return x.data_ptr()
    except RuntimeError:
        return 0


def _compiled() -> bool:
    """Is a caller a function that torch.compile has made? A look at the whole stack takes microseconds: not before there is one."""
    if (dynamo := sys.modules.get(DYNAMO)) is None or not any(map(callable, dynamo.cached_backends.values())):
        return False
    frame = sys._getframe(3)
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper" and frame.f_code.co_filename.endswith("eval_frame.py"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _call(key: tuple[Any, ...], calls: int) -> Call:
    function, op, near, inputs, gradient, compiled, precision = key
    shapes, strides, dtypes, contiguous, addresses, on_gpu = zip(*inputs, strict=True)
    dtype = str(dtypes[0]).removeprefix("torch.")
    return Call(
        op, function, near, _shape(op, near, shapes),
        "tfloat32" if op == "matmul" and dtype == "float32" and precision != "highest" else dtype,
        tuple(tuple(stride) for stride in strides), all(contiguous), not any(addresses),
        "cuda" if on_gpu[0] else "cpu", gradient, compiled, calls,
    )  # fmt: skip


def _shape(op: str, near: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """A workload's. Of what only contains the op: the first input's, for a product of matrices (M, K, N)."""
    first = tuple(shapes[0])
    if op == "matmul" and all(len(shape) == 2 for shape in shapes):
        return (*first, shapes[1][1])
    if near:
        return first
    if op == "softmax":
        return math.prod(first[:-1]), first[-1] if first else 1
    return tuple(OPS[op].workload_shape(first))


class Watched:
    """The value of `recording()`: its `recording` holds what was seen so far, or until the end."""

    def __init__(self, command: tuple[str, ...] = ()) -> None:
        self._mode, self._command = Counting(), command
        self._began = time.monotonic()
        self._seconds: float | None = None

    def end(self) -> None:
        self._seconds = time.monotonic() - self._began

    @property
    def recording(self) -> Recording:
        seconds = time.monotonic() - self._began if self._seconds is None else self._seconds
        calls = self._mode.calls()
        gpu = torch.cuda.get_device_name() if any(call.device == "cuda" for call in calls) else "cpu"
        return Recording(self._command, seconds, self._mode.dispatched, gpu, {"torch": torch.__version__}, calls)


@contextmanager
def recording(command: tuple[str, ...] = ()) -> Iterator[Watched]:
    """Counts the calls of the five ops, and of functions that contain them, that torch makes within; the program's results are unchanged.

        with opwise.recording() as seen:
            model(batch)
        seen.recording.write(Path("recording.json"))     # for `opwise choose --recorded` and `opwise run --recorded`

    It covers this thread, and backward passes that begin in it. torch.compile'd functions run uncompiled, and their calls are marked so."""
    watched = Watched(command)
    try:
        with watched._mode:
            yield watched
    finally:
        watched.end()
