"""The launches of the CUDA C++ backends for each op and variant: plan and kernel arguments. Each backend has its own launcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from opwise.backends import cuda_on_cpu
from opwise.backends.cuda_src import matmul, plan, softmax
from opwise.backends.cuda_src.matmul import ladder as matmul_ladder
from opwise.backends.cuda_src.plan import Plan
from opwise.backends.cuda_src.softmax import ladder as softmax_ladder
from opwise.backends.gemm import gpu
from opwise.backends.gemm.cost import Product, alignment
from opwise.backends.gemm.gpu import Machine
from opwise.backends.protocol import Build, UnsupportedWorkload, Variant
from opwise.backends.tuned import look
from opwise.ops.spec import tf32_allowed


@dataclass(frozen=True)
class Recipe:
    """plan(*inputs, out) -> Plan: may raise UnsupportedWorkload, and depends only on what a build may (protocol.py).
    sizes(*inputs, out) -> the kernel's int64 parameters between the tensors' addresses and the plan's shares and scratch."""

    summary: str
    plan: Callable[..., Plan]
    sizes: Callable[..., tuple[int, ...]]


def variants(op: str, built: Callable[[Recipe], Build]) -> dict[str, Variant]:
    """The op's variants in a backend; built(recipe) is its build. Only the unnamed variant of matmul takes transposed factors."""
    return {
        name: Variant(built(recipe), recipe.summary, takes_transposed=(op, name) == ("matmul", "")) for name, recipe in RECIPES[op].items()
    }


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _aligned(*tensors: Tensor) -> bool:
    return alignment(*tensors) == plan.VECTOR_BYTES


def _processors(x: Tensor) -> int:
    if not x.is_cuda:
        return cuda_on_cpu.PROCESSORS
    count: int = torch.cuda.get_device_properties(x.device).multi_processor_count
    return count


def _capability(x: Tensor) -> tuple[int, int]:
    return torch.cuda.get_device_capability(x.device) if x.is_cuda else cuda_on_cpu.CAPABILITY


def _count(x: Tensor, out: Tensor) -> tuple[int, ...]:
    return (x.numel(),)


def _rows_columns(x: Tensor, out: Tensor) -> tuple[int, ...]:
    return x.shape[0], x.shape[1]


def _m_k_n(a: Tensor, b: Tensor, out: Tensor) -> tuple[int, ...]:
    return a.shape[0], a.shape[1], b.shape[1]


def _elementwise_plan(op: str) -> Callable[..., Plan]:
    def planned(x: Tensor, out: Tensor) -> Plan:
        return plan.elementwise(op, x.numel(), _dtype(x), _aligned(x, out))

    return planned


def _mean_plan(x: Tensor, out: Tensor) -> Plan:
    return plan.mean(x.numel(), _dtype(x), _processors(x))


def _softmax_plan(x: Tensor, out: Tensor) -> Plan:
    choices = look(softmax.TABLE, x.device)
    return softmax.plan(x.shape[0], x.shape[1], _dtype(x), _aligned(x, out), _processors(x), _capability(x), choices)


def _softmax_rung(rung: str, summary: str) -> Recipe:
    return Recipe(summary, lambda x, out: softmax_ladder.plan(rung, x.shape[0], x.shape[1], _dtype(x)), _rows_columns)


def _machine(x: Tensor) -> Machine:
    return Machine.of(x.device) if x.is_cuda else cuda_on_cpu.MACHINE


def _product(a: Tensor, b: Tensor, out: Tensor) -> Product:
    return Product.of(a, b, out, matmul.kind_of(_dtype(a), tf32_allowed(), _machine(a)))


def _matmul_plan(a: Tensor, b: Tensor, out: Tensor) -> Plan:
    return matmul.plan(_product(a, b, out), _machine(a), gpu.of(a.device), look(matmul.TABLE, a.device))


def _matmul_any_gpu(a: Tensor, b: Tensor, out: Tensor) -> Plan:
    return matmul.plan_any_gpu(_product(a, b, out), _machine(a), gpu.of(a.device))


def _matmul_textbook(a: Tensor, b: Tensor, out: Tensor) -> Plan:
    return matmul.plan_textbook(_product(a, b, out))


def _matmul_rung(rung: str, summary: str) -> Recipe:
    def planned(a: Tensor, b: Tensor, out: Tensor) -> Plan:
        (m, k), n = a.shape, b.shape[1]
        return matmul_ladder.plan(rung, m, k, n, _dtype(a), _aligned(a, b, out))

    return Recipe(summary, planned, _m_k_n)


def _matmul_hopper_rung(rung: str, summary: str) -> Recipe:
    return Recipe(summary, lambda a, b, out: matmul_ladder.plan_hopper(rung, _product(a, b, out), _machine(a)), _m_k_n)


def _gelu_textbook_plan(x: Tensor, out: Tensor) -> Plan:
    if x.dtype != torch.float32:
        raise UnsupportedWorkload(f"the textbook gelu takes float32, given {_dtype(x)}: use the unnamed variant")
    return plan.gelu_textbook(x.numel())


RECIPES: Mapping[str, Mapping[str, Recipe]] = {
    "square": {"": Recipe("x * x in 16-byte pieces", _elementwise_plan("square"), _count)},
    "gelu": {
        "": Recipe("x / (1 + exp(-2a)) in 16-byte pieces", _elementwise_plan("gelu"), _count),
        "textbook": Recipe("one element a thread, computed in double (CS336)", _gelu_textbook_plan, _count),
    },
    "mean": {"": Recipe("one launch, the last block waits for the others' sums and adds them", _mean_plan, _count)},
    "softmax": {
        "": Recipe("a row in a warp's or a block's registers, or over the blocks of a cluster or of the GPU", _softmax_plan, _rows_columns),
        **{rung: _softmax_rung(rung, summary) for rung, summary in softmax_ladder.RUNGS.items()},
    },
    "matmul": {
        "": Recipe("tiles on tensor cores (wgmma on Hopper, else mma), in float32 on FMA units", _matmul_plan, _m_k_n),
        "mma": Recipe("the kernels for any GPU from sm_80 on, on Hopper too", _matmul_any_gpu, _m_k_n),
        "textbook": Recipe("one element a thread, 16x16 threads a block", _matmul_textbook, _m_k_n),
        **{rung: _matmul_rung(rung, summary) for rung, (summary, *_) in matmul_ladder.RUNGS.items()},
        **{rung: _matmul_hopper_rung(rung, summary) for rung, summary in matmul_ladder.HOPPER_RUNGS.items()},
    },
}  # fmt: skip
