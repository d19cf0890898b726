"""Without Helion there is nothing to test: all is skipped, and why is said."""

from __future__ import annotations

import importlib.util

import pytest
import torch

HERE = all(importlib.util.find_spec(name) for name in ("helion", "triton"))
needs_helion = pytest.mark.skipif(not HERE, reason="helion or triton is not installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
