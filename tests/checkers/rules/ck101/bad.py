# lies at: mine/model.py
from functools import partial

import torch.utils.checkpoint as ckpt
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

a = checkpoint(block, x)
b = checkpoint(block, x, use_reentrant=True)
c = ckpt.checkpoint(block, x, use_reentrant=flag)
d = checkpoint_sequential(blocks, 2, x)
e = partial(checkpoint, block)
