"""Thread block clusters whose programs work on different data, which Triton cannot express.

A kernel is compiled for one program (num_ctas 1) and addresses the other programs of its cluster in PTX. Only the launcher gets the cluster
size, through its packed metadata, whose format is known for these versions of Triton.
"""

from __future__ import annotations

from typing import Any

import triton

KNOWN = triton.__version__.startswith(("3.6.", "3.7."))  # versions whose PTX and launcher were checked: no other runs clusters


def in_clusters(compiled: Any, size: int) -> None:
    """Makes the launcher start clusters of `size` programs. The grid's x then counts clusters: the launcher multiplies it by `size`.

    Raises RuntimeError if this Triton packs other metadata: without a cluster, programs would read shared memory that is not there.
    """
    told, of = compiled.packed_metadata, compiled.metadata
    if not KNOWN or told not in [(of.num_warps, count, of.shared) for count in (1, size)] or of.num_ctas != 1:
        raise RuntimeError(
            f"Triton {triton.__version__} tells its launcher {told}, not warps, blocks a cluster and bytes of shared memory, as 3.6 and "
            "3.7 do, so that no cluster can be asked for: pip install 'triton>=3.6,<3.8'"
        )
    compiled.packed_metadata = (of.num_warps, size, of.shared)
