"""What computes the experts: grouped products, the W1/W3 op, its oracle and its kernel.

Every op here is opaque to `torch.compile` (`torch.library.custom_op`): what a step keeps for
its backward is written down here and is the same eager and compiled, and the bodies really
run each time, so that `launches` counts what ran.
"""
