# lies at: mine/model.py
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

a = checkpoint(block, x, use_reentrant=False)
b = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
c = partial(checkpoint, use_reentrant=False)
