"""The last import of the process that workers are forked from. Existing objects are then frozen, so that a worker's garbage collection
skips them and their pages stay shared."""

from __future__ import annotations

import gc

gc.freeze()
gc.enable()
