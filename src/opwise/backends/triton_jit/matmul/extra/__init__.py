"""What serves only products whose rows begin anywhere, and products of few tiles through pointers: clusters share a tile's K.

OPWISE_EXTRA=off switches it off as one: the plan then offers the kernels of the main path alone. Its modules are imported when a product
may need them.
"""

from __future__ import annotations

import os

VARIABLE, OFF = "OPWISE_EXTRA", "off"


def enabled() -> bool:
    return os.environ.get(VARIABLE, "") != OFF
