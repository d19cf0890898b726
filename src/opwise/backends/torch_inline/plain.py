"""The variant `plain`: kernel, launch and call as in torch's manual, by `load_inline` and pybind11.

A call is `call_square` of plain.cu, as a user of load_inline has it; a launch is `launch_square`, which takes the output. One extension
holds all five ops, built on first use. Without a GPU the kernels run in the stand-in (cuda_on_cpu).
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opwise.backends.cuda_src import plain
from opwise.backends.protocol import AtOnce, Bind, Launch, Variant
from opwise.backends.torch_inline.launch import built

HOST = Path(__file__).with_name("plain.cu")
DECLARATIONS = """
torch::Tensor call_square(torch::Tensor x);
torch::Tensor call_gelu(torch::Tensor x);
torch::Tensor call_mean(torch::Tensor x);
torch::Tensor call_softmax(torch::Tensor x);
torch::Tensor call_matmul(torch::Tensor a, torch::Tensor b);
void launch_square(torch::Tensor x, torch::Tensor out);
void launch_gelu(torch::Tensor x, torch::Tensor out);
void launch_mean(torch::Tensor x, torch::Tensor out, torch::Tensor sums);
void launch_softmax(torch::Tensor x, torch::Tensor out);
void launch_matmul(torch::Tensor a, torch::Tensor b, torch::Tensor out);
"""


def source() -> str:
    """The CUDA C++ for load_inline: all kernels, then the host code."""
    return "\n".join([*map(plain.text, plain.SUMMARIES), HOST.read_text(encoding="utf-8")])


@cache
def extension() -> Any:
    """The module, built on first use. Raises RuntimeError with the compiler's message, BackendUnavailable if there is no compiler."""
    from torch.utils.cpp_extension import load_inline

    from opwise.backends.torch_inline.extension import build_root, toolkit
    from opwise.backends.torch_inline.toolchain import toolchain

    tools, text = toolchain(), source()
    tools.check_for_torch()
    folder = build_root() / f"opwise_plain_{hashlib.sha256((text + DECLARATIONS + torch.__version__).encode()).hexdigest()[:20]}"
    folder.mkdir(parents=True, exist_ok=True)
    functions = [f"{way}_{op}" for op in plain.SUMMARIES for way in ("call", "launch")]
    with toolkit(tools, folder) as runtime:
        return load_inline(  # type: ignore[no-untyped-call]
            "opwise_plain", DECLARATIONS, text, functions=functions, extra_ldflags=[runtime], with_cuda=True, build_directory=str(folder)
        )


def variant(op: str) -> Variant:
    stand_in = plain.on_cpu(op, built)

    def build(*tensors: Tensor) -> Bind:
        return stand_in(*tensors) if tensors[-1].device.type == "cpu" else on_gpu(*tensors)

    def on_gpu(*tensors: Tensor) -> Bind:
        plain.steps(op, *tensors)  # raises UnsupportedWorkload
        launched, called = getattr(extension(), f"launch_{op}"), getattr(extension(), f"call_{op}")

        def bind(*tensors: Tensor) -> Launch:
            sums = plain.steps(op, *tensors)[0].tensors[1:] if op == "mean" else ()
            return lambda: launched(*tensors, *sums)

        return AtOnce(bind, call_of=lambda out: called)

    return Variant(build, plain.SUMMARIES[op])
