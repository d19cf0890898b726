"""Plans of matmul in CUDA C++: `plan` chooses the kernel and grid of a product.

`kernels` has the configurations (configurations.py) of the main path, `extra` those only for unaligned, skinny or tiny products. `offered`
lists all that can compute a product, and gemm/choice.py takes one: the fastest as measured on this GPU, else as predicted. `ladder` has
the rungs above the textbook kernel.
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
    """The launch for A (m, k) B (k, n), in any layout; m, k, n >= 1.

    Raises UnsupportedWorkload for another dtype, or if no kernel fits the GPU or the grid's size.
    """
    return _launch(product, machine, offered(product, machine), gpu, choices)


def plan_any_gpu(product: Product, machine: Machine, gpu: Gpu = H100) -> Plan:
    """The variant `mma`: the kernels for sm_80, on any GPU. Raises as `plan`."""
    portable = replace(machine, capability=min(machine.capability, TENSOR_CORES_FROM))
    return _launch(product, machine, offered(product, portable), gpu, SHIPPED)


def plan_invariant(product: Product, machine: Machine, gpu: Gpu = H100, choices: Choices = SHIPPED) -> Plan:
    """The variant `invariant`: a row of C has the same bits whatever m is. Raises as `plan`."""
    found = offered(product, machine)
    taken = choice.choose_invariant(product, lambda other: offered(other, machine), gpu, choices)
    return _on_grid(product, found[taken.name].launch(product, machine))


def plan_textbook(product: Product) -> Plan:
    """The variant `textbook`, float32 only: 16 x 16 threads per CTA, one element of C per thread. Raises as `plan`."""
    if product.size != 4:
        raise UnsupportedWorkload(f"matmul:textbook: {product.kind} given, float32 alone is taken: use the unnamed variant")
    ctas = -(-product.m // 16) * -(-product.n // 16)
    return _on_grid(product, Plan(TEXTBOOK, (ctas, 1, 1), (16, 16, 1)))


def configs() -> tuple[Config, ...]:
    """All configurations, without those of `extra` if it is switched off."""
    return (*CONFIGS, *extra.configs()) if extra.enabled() else CONFIGS


def offered(product: Product, machine: Machine) -> dict[str, Config]:
    """Name -> configuration, of all that can compute the product. Raises UnsupportedWorkload for another dtype."""
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
    """The kind of products: "tfloat32" for float32 if tf32 is allowed and the GPU has it, else the dtype."""
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
