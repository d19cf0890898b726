"""A user's own kernel: a file with one import and one decorator is checked and ranked beside the five.

    import torch, opwise

    @opwise.kernel("softmax")
    def rows(x, out):                  # writes into out, on torch's current stream
        torch.softmax(x, dim=-1, out=out)

`opwise run softmax --with my_softmax.py` shows it as `my_softmax/softmax`. A function without `out` returns a new tensor. With
`build=True` it is the protocol's `build(*inputs, out) -> bind` (opwise.backends.protocol), which compiles and checks once and leaves
nothing but the launch to the clock.

The file runs in workers only: whatever it does on being imported, it does to itself.
"""

from opwise.own.files import BadFile, FileBackend, Setup, declared, install, libraries, named, setup
from opwise.own.marking import kernel

__all__ = ["BadFile", "FileBackend", "Setup", "declared", "install", "kernel", "libraries", "named", "setup"]
