"""On small tensors, beside other workers of xdist, one thread is the quickest."""

import torch

torch.set_num_threads(1)
