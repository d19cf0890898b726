"""The last that is imported by the process which workers are forked from. What it holds by then stays, and no worker looks there for
garbage: pages that nobody touches are shared."""

from __future__ import annotations

import gc

gc.freeze()
gc.enable()
