"""Other people's kernels, as scripts/peers.py times them: QuACK's (CuTe DSL, `quack-kernels`) and Liger's (Triton, `liger-kernel`).

Each is held to what ours are: it writes into an output that it is given and enqueues on torch's current stream. So it is entered below
whatever allocates: buffers that a captured launch allocates would be one and the same for all launches of a graph, and stay in the L2.

Neither package is a dependency of opwise, and no result needs one: they are imported on use, and where they are missing peers.py quotes.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from opwise.measure.gpu import Launch
from opwise.measure.timing import Clock

Prepare = Callable[..., Launch]  # (*inputs, out=output) -> launch, as `Implementation.prepare`
Make = Callable[[Clock, Sequence[Sequence[Tensor]]], tuple[Prepare, str]]  # and what it chose among, "" where there is no choice

MODULES = {"quack": ("quack.softmax", "quack-kernels"), "liger": ("liger_kernel.ops.softmax", "liger-kernel")}
CHOICE_S = 0.05  # a configuration of a product: with 22 of them about two seconds a shape


def installed() -> tuple[dict[str, str], dict[str, str]]:
    """(versions of those that can be imported, why the others cannot), by peer."""
    versions, missing = {}, {}
    for peer, (module, package) in MODULES.items():
        try:
            importlib.import_module(module)
            versions[peer] = importlib.metadata.version(package)
        except Exception as error:  # a package may also fail in what it does on import: on this GPU, with this torch
            missing[peer] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return versions, missing


def quack_softmax(clock: Clock, inputs: Sequence[Sequence[Tensor]]) -> tuple[Prepare, str]:
    """x, out: (rows, columns). The body of `quack.softmax.softmax_fwd`, which allocates its output. It compiles on the first launch."""
    from quack.softmax import _softmax_fwd

    return lambda x, *, out: lambda: _softmax_fwd(x, out), ""


def liger_softmax(clock: Clock, inputs: Sequence[Sequence[Tensor]]) -> tuple[Prepare, str]:
    """x, out: (rows, columns). The launch of Liger's `_softmax_forward`, which allocates its output. Its settings refuse more than
    65536 columns, so that of its two kernels only this one is ever launched."""
    from liger_kernel.ops.softmax import _softmax_single_block_forward_kernel as kernel
    from liger_kernel.ops.softmax import calculate_settings

    def prepare(x: Tensor, *, out: Tensor) -> Launch:
        rows, columns = x.shape
        block, warps = calculate_settings(columns)
        grid, strides = kernel[(rows,)], (out.stride(0), x.stride(0))
        return lambda: grid(out, strides[0], x, strides[1], columns, BLOCK_SIZE=block, num_warps=warps)

    return prepare, ""


def quack_matmul(clock: Clock, inputs: Sequence[Sequence[Tensor]]) -> tuple[Prepare, str]:
    """a (M, K), b (K, N), out (M, N): `quack.gemm_interface.gemm` with the configuration that is the quickest here, by our clock.

    QuACK's own tuner measures each for 0.2 s and more, its default is one for all shapes. Those that swap the operands are left
    out: they are the same tiles of the transposed product, which for squares is as much work.
    """
    from quack.gemm_config import get_all_configs
    from quack.gemm_interface import gemm_tuned

    major = torch.cuda.get_device_capability(clock.device)[0]
    configs = [config for config in get_all_configs() if config.device_capacity == major and not config.swap_ab]
    named = {str(config): config for config in configs}

    def configured(config: Any) -> Prepare:
        def prepare(a: Tensor, b: Tensor, *, out: Tensor) -> Launch:
            return lambda: gemm_tuned.fn(a, b, out, config=config)

        return prepare

    outputs = [torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device) for a, b in inputs]
    launches = {name: [configured(config)(*x, out=out) for x, out in zip(inputs, outputs, strict=True)] for name, config in named.items()}
    timed = clock.cold(launches, budget_s=CHOICE_S)
    if not timed:
        raise RuntimeError(f"none of {len(named)} configurations runs: {next(iter(clock.refusals.values()), 'there is none')}")
    best = min(timed, key=lambda name: timed[name].median_us)
    return configured(named[best]), f"{spelled(named[best])}, the best of {len(timed)}"


def spelled(config: Any) -> str:
    """What tells Hopper's configurations from one another: "128x192 pingpong, cluster 2x1"."""
    way = "pingpong" if config.pingpong else "cooperative"
    return f"{config.tile_m}x{config.tile_n} {way}, cluster {config.cluster_m}x{config.cluster_n}"


KERNELS: dict[str, dict[str, Make]] = {
    "softmax": {"quack": quack_softmax, "liger": liger_softmax},
    "matmul": {"quack": quack_matmul},
}
