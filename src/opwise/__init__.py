"""opwise: which way of writing a GPU kernel is right, how fast is it against the hardware's limit, and which one to use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opwise import early as _early  # noqa: F401  # begins the workers of a command, before torch is imported
from opwise.backends import BACKENDS, implementation
from opwise.backends.protocol import BackendUnavailable, UnsupportedWorkload
from opwise.choosing import traced as _traced  # noqa: F401  # registers the operators that torch.compile sees
from opwise.choosing.dispatch import gelu, matmul, mean, softmax, square, use
from opwise.ops import OPS, Cost, OpSpec, Workload
from opwise.own import kernel as kernel

if TYPE_CHECKING:
    from opwise.choosing.asked import NothingMeasured
    from opwise.choosing.query import choose
    from opwise.choosing.ranking import Choice
    from opwise.program.counting import recording
    from opwise.program.replacing import replacing

__version__ = "0.2.0"

__all__ = [
    "BACKENDS",
    "OPS",
    "BackendUnavailable",
    "Choice",
    "Cost",
    "NothingMeasured",
    "OpSpec",
    "UnsupportedWorkload",
    "Workload",
    "__version__",
    "choose",
    "gelu",
    "implementation",
    "matmul",
    "mean",
    "recording",
    "replacing",
    "softmax",
    "square",
    "use",
]

_ON_USE = {
    "choose": "opwise.choosing.query",
    "NothingMeasured": "opwise.choosing.asked",
    "Choice": "opwise.choosing.ranking",
    "recording": "opwise.program.counting",
    "replacing": "opwise.program.replacing",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """What reads stored runs is imported when it is asked for."""
    if name not in _ON_USE:
        raise AttributeError(f"module 'opwise' has no attribute {name!r}: public are {', '.join(__all__)}")
    import importlib

    return getattr(importlib.import_module(_ON_USE[name]), name)
