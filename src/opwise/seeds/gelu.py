"""CS336, lecture 6: GELU of 16384x16384 float32 values by hand in eager, fused, in CUDA C++, in Triton, and by torch.compile.

By hand it is one kernel per operation, each reading and writing 1 GiB. The classroom CUDA kernel is compiled by NVRTC here, from the source
that torch_inline compiles by nvcc: one unit instead of the whole extension."""

from __future__ import annotations

from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.seeds.clocks import race, told_us
from opwise.seeds.experiment import Findings
from opwise.seeds.place import Place
from opwise.seeds.profiles import profiled

WORKLOAD = Workload("gelu", (16384, 16384), "float32")
WORK = OPS["gelu"].cost(WORKLOAD)
FUSED, MANUAL, COMPILED = "torch_eager/gelu", "torch_eager/gelu:manual", "torch_eager/gelu:compile"
WAYS = {
    "manual": MANUAL,
    "torch": FUSED,
    "CUDA": "cupy_raw/gelu:textbook",
    "Triton": "triton_jit/gelu:textbook",
    "torch.compile": COMPILED,
    "CUDA of opwise": "cupy_raw/gelu",
    "Triton of opwise": "triton_jit/gelu",
}
COMPILED_SHAPE = (4096, 4096)


def timed(place: Place) -> Findings:
    raced = race(place, WORKLOAD, list(WAYS.values()))
    cold = {label: raced.us(name) for label, name in WAYS.items() if name in raced.timings}
    slower = raced.over(MANUAL, FUSED)
    absent = "; ".join(f"{label}: {raced.absent[name]}" for label, name in WAYS.items() if name in raced.absent)
    compiled = f"torch.compile takes {raced.over(COMPILED, FUSED):.2f} of the fused time" if COMPILED in raced.timings else ""
    said = [f"by hand {slower:.1f} times slower than fused", compiled, absent]
    return Findings(
        ", ".join(f"{label} {told_us(us)}" for label, us in cold.items() if "opwise" not in label),
        "; ".join(filter(None, said)),
        slower > 4 and not absent,
        cold["torch"],
        {f"{label}, cold, us": us for label, us in cold.items()} | {"manual over fused": slower},
    )


def compiled(place: Place) -> Findings:
    """Tests whether torch.compile's GELU is one Triton kernel, as the source expects but does not confirm."""
    import torch

    from opwise.backends.torch_eager.gelu import by_hand

    x = torch.randn(*COMPILED_SHAPE, device=place.device)
    torch._dynamo.reset()
    function = torch.compile(by_hand, dynamic=False, fullgraph=True)
    eager, fused = by_hand(x), function(x)
    by_hands, ours = profiled(place, lambda: by_hand(x)), profiled(place, lambda: function(x))
    names = [name for name, _ in ours.kernels]
    apart = float((eager - fused).abs().max())
    return Findings(
        f"{len(names)} kernel{'s' * (len(names) != 1)}, {len(by_hands.kernels)} by hand",
        f"{'confirmed' if len(names) == 1 else 'not confirmed'}: {', '.join(names) or 'none'}; largest difference to eager {apart:.2g}",
        len(names) == 1 and "triton" in names[0].lower() and apart < 1e-5,
        figures={"kernels of torch.compile": len(names), "kernels by hand": len(by_hands.kernels), "largest difference": apart},
    )
