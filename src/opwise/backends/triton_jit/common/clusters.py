"""Thread block clusters whose programs work on different data, for which Triton has no words.

A kernel is compiled for one program and says in PTX what concerns the others of its cluster; that programs are clusters is told to the
launcher alone, in words of its own that are known of these versions of Triton.
"""

from __future__ import annotations

from typing import Any

import triton

KNOWN = triton.__version__.startswith(("3.6.", "3.7."))  # whose PTX and launchers were read: any other gets what Gluon itself can say


def in_clusters(compiled: Any, size: int) -> None:
    """Has the launcher make clusters of `size` programs, which it multiplies the grid's x by: that counts clusters.

    Raises RuntimeError where this Triton tells its launcher something else: blocks without a cluster would add up what is not there.
    """
    told, of = compiled.packed_metadata, compiled.metadata
    if not KNOWN or told not in [(of.num_warps, count, of.shared) for count in (1, size)] or of.num_ctas != 1:
        raise RuntimeError(
            f"Triton {triton.__version__} tells its launcher {told}, not warps, blocks a cluster and bytes of shared memory, as 3.6 and "
            "3.7 do, so that no cluster can be asked for: pip install 'triton>=3.6,<3.8'"
        )
    compiled.packed_metadata = (of.num_warps, size, of.shared)
