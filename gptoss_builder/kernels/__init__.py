"""The W1/W3 op: its oracle, its Triton kernel and its ahead-of-time compile."""
