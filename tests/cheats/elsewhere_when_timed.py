"""Once it has been checked it works on a stream of its own, where the clock's events are not."""

import torch

import opwise

REJECTED = "in a timed launch, on fresh inputs"
WHERE = "gpu"
CHECKS = 7  # one to measure memory, two a kind of inputs
CALLS, STREAMS = [], []


@opwise.kernel("softmax")
def rows(x, out):
    CALLS.append(0)
    STREAMS[:] = STREAMS or [torch.cuda.Stream()]
    with torch.cuda.stream(STREAMS[0] if len(CALLS) > CHECKS else torch.cuda.current_stream()):
        torch.softmax(x, dim=-1, out=out)
