"""opwise: which way of writing a GPU kernel is right, how fast is it against the hardware's limit, and which one to use."""

from __future__ import annotations

from opwise.backends import BACKENDS, implementation
from opwise.backends.protocol import BackendUnavailable, UnsupportedWorkload
from opwise.ops import OPS, Cost, OpSpec, Workload

__version__ = "0.1.0"

__all__ = ["BACKENDS", "OPS", "BackendUnavailable", "Cost", "OpSpec", "UnsupportedWorkload", "Workload", "__version__", "implementation"]
