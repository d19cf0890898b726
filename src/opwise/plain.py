"""Whether a tensor's memory holds its value: asked by the dispatch before it hands a tensor to a kernel, and by a kernel's own call."""

from __future__ import annotations

from torch import Tensor
from torch.nn import Parameter

LOW = 2**40  # below it, what data_ptr() gives may be an offset: asking the storage for its address takes 0.3 us


def astray(x: Tensor, memory: int) -> bool:
    """Is what data_ptr() gave 0, or no address but an offset into memory that is not there, as of parts of what torch.func.functionalize
    wraps?"""
    try:
        return memory == 0 or x.untyped_storage().data_ptr() == 0
    except RuntimeError:
        return True


def plain(x: Tensor) -> bool:
    """Returns whether a tensor's memory holds its value. False with a negative or conjugate bit, for wrappers of torch.func, for sparse
    tensors, on the device `meta`, and for subclasses, which may mean something else by it."""
    try:
        seen = not (x.is_neg() or x.is_conj() or x.is_quantized or x.is_nested or x.is_meta) and type(x) in (Tensor, Parameter)
        return seen and (x.data_ptr() >= LOW or x.numel() == 0 or not astray(x, x.data_ptr()))
    except RuntimeError:
        return False
