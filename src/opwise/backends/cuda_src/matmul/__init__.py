"""The front door of matmul in CUDA C++: `plan` says which kernel a product runs, over what grid.

A configuration (configurations.py) exists once: `kernels` has those of the main path, `extra` those that serve only unaligned, skinny or
tiny products. `offered` are all that take a product; gemm/choice.py takes one of them: what was measured to be the quickest on this GPU,
else what is predicted to be. `ladder` has the rungs from the textbook up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from opwise.backends.cuda_src.matmul import extra
from opwise.backends.cuda_src.matmul.configurations import TENSOR_CORES_FROM, Config
from opwise.backends.cuda_src.matmul.kernels import CONFIGS
from opwise.backends.cuda_src.plan import Plan
from opwise.backends.gemm import choice
from opwise.backends.gemm.cost import Product
from opwise.backends.gemm.gpu import H100, Gpu, Machine
from opwise.backends.protocol import UnsupportedWorkload
from opwise.backends.tuned import SHIPPED, Choices

TABLE = "cuda_src/matmul"
GRID_LIMIT = 2**31 - 1
TEXTBOOK = "matmul_textbook_float32"


def plan(product: Product, machine: Machine, gpu: Gpu = H100, choices: Choices = SHIPPED) -> Plan:
    """The launch for A (m, k) B (k, n), of any layout and at least 1 in size.

    Raises UnsupportedWorkload for another dtype, and where no kernel fits the GPU or the grid.
    """
    return _launch(product, machine, offered(product, machine), gpu, choices)


def plan_any_gpu(product: Product, machine: Machine, gpu: Gpu = H100) -> Plan:
    """The variant `mma`: what a GPU of sm_80 would run. Raises as `plan`."""
    portable = replace(machine, capability=min(machine.capability, TENSOR_CORES_FROM))
    return _launch(product, machine, offered(product, portable), gpu, SHIPPED)


def plan_invariant(product: Product, machine: Machine, gpu: Gpu = H100, choices: Choices = SHIPPED) -> Plan:
    """The variant `invariant`: a row of C has the same bits whatever m is. Raises as `plan`."""
    found = offered(product, machine)
    taken = choice.choose_invariant(product, lambda other: offered(other, machine), gpu, choices)
    return _on_grid(product, found[taken.name].launch(product, machine))


def plan_textbook(product: Product) -> Plan:
    """The variant `textbook`, of float32: 16 x 16 threads a CTA, one element of C a thread. Raises as `plan`."""
    if product.size != 4:
        raise UnsupportedWorkload(f"matmul:textbook: {product.kind} given, float32 alone is taken: use the unnamed variant")
    ctas = -(-product.m // 16) * -(-product.n // 16)
    return _on_grid(product, Plan(TEXTBOOK, (ctas, 1, 1), (16, 16, 1)))


def configs() -> tuple[Config, ...]:
    """All, of every kernel that is switched on."""
    return (*CONFIGS, *extra.configs()) if extra.enabled() else CONFIGS


def offered(product: Product, machine: Machine) -> dict[str, Config]:
    """Name -> configuration, of all that take the product. Raises UnsupportedWorkload for a dtype that none has."""
    kind = product.kind
    if kind not in ("float32", "tfloat32", "float16", "bfloat16"):
        raise UnsupportedWorkload(f"matmul: dtype {kind} given, float32, float16 and bfloat16 are taken: convert with .to(...)")
    return {
        config.name: config
        for config in configs()
        if config.layout == product.layout
        and config.serves(kind)
        and config.takes(product, machine)
        and config.shared_bytes(kind) <= machine.shared_bytes
    }


def kind_of(dtype: str, tf32: bool, machine: Machine) -> str:
    """Of products. TF32 is a permission, not a demand: a GPU without it multiplies in float32."""
    return "tfloat32" if dtype == "float32" and tf32 and machine.capability >= TENSOR_CORES_FROM else dtype


def _launch(product: Product, machine: Machine, found: Mapping[str, Config], gpu: Gpu, choices: Choices) -> Plan:
    if not found:
        aligned, room = product.vector_bytes, machine.shared_bytes
        raise UnsupportedWorkload(f"matmul: no kernel for {product.kind} on compute capability {machine.capability}, data aligned to "
                                  f"{aligned} bytes, in {room} bytes of shared memory: use torch_eager")  # fmt: skip
    taken = choice.choose(product, found, gpu, choices)
    return _on_grid(product, found[taken.name].launch(product, machine))


def _on_grid(product: Product, made: Plan) -> Plan:
    if made.grid[0] > GRID_LIMIT:
        raise UnsupportedWorkload(f"matmul: a {product.m} x {product.n} product needs {made.grid[0]} CTAs, a grid has {GRID_LIMIT} "
                                  "at most: split it by rows")  # fmt: skip
    return made
