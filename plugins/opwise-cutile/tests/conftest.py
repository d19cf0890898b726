"""Without cuda-tile or tileiras there is nothing to test: all is skipped, and why is said."""

from __future__ import annotations

import pytest
import torch
from opwise.backends.protocol import BackendUnavailable


def _missing() -> str:
    try:
        from opwise_cutile.tileiras import tileiras

        tileiras()
    except ImportError as error:
        return f"cuda-tile is not installed: {error}"
    except BackendUnavailable as error:
        return str(error)
    return ""


MISSING = _missing()
needs_compiler = pytest.mark.skipif(bool(MISSING), reason=MISSING or "tileiras is here")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
