"""Gives `out` other memory instead of writing into it."""

import torch

import opwise

REJECTED = "`out` was given other memory"


@opwise.kernel("softmax")
def rows(x, out):
    out.data = torch.softmax(x, dim=-1)
