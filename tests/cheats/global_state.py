"""Sets for everybody what suits itself, in as many ways as torch has switches."""

import torch

import opwise

REJECTED = "it changes what all of the process share"
SWITCHES = {
    "tf32": lambda: torch.set_float32_matmul_precision("high"),
    "tf32_new": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "denormals": lambda: torch.set_flush_denormal(True),
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "threads": lambda: torch.set_num_threads(3),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "gradients": lambda: torch._C._set_grad_enabled(True),
}


def switching(name):
    @opwise.kernel("softmax", variant=name)
    def rows(x, out):
        out.copy_(torch.softmax(x, dim=-1))
        SWITCHES[name]()

    rows.__name__ = name
    return rows


globals().update({name: switching(name) for name in SWITCHES})
