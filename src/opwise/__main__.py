"""`python3 -m opwise`: the `opwise` command where the package is on the path but not installed."""

from __future__ import annotations

from opwise.cli import main

if __name__ == "__main__":
    main()
