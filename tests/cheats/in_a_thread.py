"""Returns at once; a thread does the work."""

import threading
import time

import torch

import opwise

REJECTED = "it is written in a thread, or on another stream"


@opwise.kernel("softmax")
def rows(x, out):
    def work():
        time.sleep(0.05)
        torch.softmax(x, dim=-1, out=out)

    threading.Thread(target=work, daemon=True).start()
