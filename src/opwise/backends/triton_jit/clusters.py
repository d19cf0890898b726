"""Thread block clusters whose programs work on different data, for which Triton has no words.

A kernel is compiled for one program and says in PTX what concerns the others of its cluster; that programs are clusters is told to the
launcher alone, in words of its own that are known of these versions of Triton.
"""

from __future__ import annotations

from typing import Any

import triton

KNOWN = triton.__version__.startswith(("3.6.", "3.7."))  # whose PTX and launchers were read: any other gets what Gluon itself can say


FREE = 48 * 1024  # bytes of shared memory that a kernel may have without having been asked


def in_clusters(compiled: Any, size: int, shared: int = 0) -> None:
    """Has the launcher make clusters of `size` programs, which it multiplies the grid's x by: that counts clusters.

    shared: bytes of shared memory that a program has at the least, where its PTX knows of more than Triton does: up to `FREE`, or to what
    Triton asks for. Raises RuntimeError where this Triton tells its launcher something else: blocks without a cluster would add up what is
    not there.
    """
    told, of = compiled.packed_metadata, compiled.metadata
    wanted = (of.num_warps, size, max(of.shared, shared))
    if not KNOWN or told not in [(of.num_warps, 1, of.shared), wanted] or of.num_ctas != 1:
        raise RuntimeError(
            f"Triton {triton.__version__} tells its launcher {told}, not warps, blocks a cluster and bytes of shared memory, as 3.6 and "
            "3.7 do, so that no cluster can be asked for: pip install 'triton>=3.6,<3.8'"
        )
    if shared > max(of.shared, FREE):
        raise RuntimeError(f"{shared} bytes of shared memory wanted, Triton asks for {of.shared}: more than {FREE} have to be asked for")
    compiled.packed_metadata = wanted
