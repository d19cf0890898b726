"""Kernels for products with unaligned rows, and for products of few tiles through pointers: split-K over a cluster.

OPWISE_EXTRA=off switches all of them off. The modules are imported when a product may need them.
"""

from __future__ import annotations

import os

VARIABLE, OFF = "OPWISE_EXTRA", "off"


def enabled() -> bool:
    return os.environ.get(VARIABLE, "") != OFF
