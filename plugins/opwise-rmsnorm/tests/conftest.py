"""The tests of opwise bring their fixtures and helpers; CPU stand-ins run the kernels where there is no GPU."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))
